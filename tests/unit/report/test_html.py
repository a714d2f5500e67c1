"""Test the page of any results: self-contained, harmless, legible, quick."""

import html
import re
import time
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compare.analysis import analyse
from compare.analysis.predict import forecast
from compare.report import document_of, of_prediction
from compare.report.axes import AxisScale, linear_ticks, log_ticks
from compare.report.cells import in_units
from compare.report.formats.html import page_of, pictures_of
from compare.report.run_pictures import _strip_ticks
from compare.schema.hosts import Host
from tests.comparing import ROOT
from tests.unit.collectives import a_collectives_run, a_sweep_config, a_sweep_launch
from tests.unit.factories import a_run
from tests.unit.pages import Page, opened, render, text_of
from tests.unit.predictions import a_measured_run
from tests.unit.runs import RUNS, measured
from tests.unit.scales import BENDING, a_scale

SVG = "{http://www.w3.org/2000/svg}"


def swept():
    """Return a run of two groups over sizes."""
    config = a_sweep_config(end_bytes=1 << 20, factor=16)
    launches = [a_sweep_launch(config, group) for group in config.groups]
    return a_collectives_run(config, launches, left_out={"nccl": "no GPU"})


ITEMS = {
    "collectives": document_of(swept(), "html"),
    "scale": document_of(a_scale(BENDING), "html"),
    "prediction": of_prediction.document_of(forecast(a_measured_run(), [2, 4, 8], None, [])),
    "run": document_of(RUNS["quiet"], "html"),
}
OF_RUNS = {name: document_of(run, "html") for name, run in RUNS.items() if name != "quiet"}
every_item = pytest.mark.parametrize("item", (ITEMS | OF_RUNS).values(), ids=ITEMS | OF_RUNS)


def page(run):
    return render(run, analyse(run), "html")


def drawn(run):
    return pictures_of([document_of(run, "html")])


@every_item
def test_page_is_self_contained_and_closed_tag_by_tag(item):
    """A page that is XML as well has no tag left open."""
    text = page_of([item])
    seen = Page(text)
    assert not {"script", "img", "iframe", "object", "embed", "base"} & set(seen.tags)
    named = [name for name, _ in seen.attributes if name in {"src", "style"} or name.startswith("on")]
    assert named == []
    links = [value for name, value in seen.attributes if "href" in name]
    assert links == ["data:,"]
    assert set(re.findall(r"https?://[^\"< ]*", text)) <= {"http://www.w3.org/2000/svg"}
    assert "@import" not in text
    assert "url(" not in text
    ET.fromstring(re.sub(r"<(meta|link)([^>]*)>", r"<\1\2/>", text.removeprefix("<!doctype html>")))


@every_item
def test_every_picture_has_a_title_a_description_and_known_sizes(item):
    found = pictures_of([item])
    for name, svg in found.items():
        root = ET.fromstring(svg)
        assert root.get("aria-labelledby") == f"{name}-title {name}-desc"
        assert root.find(f"{SVG}title").text
        assert root.find(f"{SVG}desc").text
        assert not re.search(r'(width|height)="-|nan|inf', svg)
    ids = re.findall(r'\bid="([^"]*)"', page_of([item]))
    assert len(ids) == len(set(ids)) == 2 * len(found)


@every_item
def test_labels_of_a_picture_stay_inside_and_apart(item):
    for svg in pictures_of([item]).values():
        root = ET.fromstring(svg)
        top, width, height = map(float, root.get("viewBox").split()[1:])
        taken = []
        for text in root.iter(f"{SVG}text"):
            x, y, wide = float(text.get("x")), float(text.get("y")), 6.5 * len(text.text or "")
            style = text.get("class").split()
            left = x - wide if {"figure", "end"} & set(style) else x - wide / 2 if "tick" in style else x
            assert left >= -1
            assert left + wide <= width + 1
            assert top < y <= top + height
            for other_y, start, end in taken:
                assert abs(other_y - y) > 8 or left >= end or left + wide <= start, text.text
            taken.append((y, left, left + wide))


def test_pages_show_what_their_tables_show():
    found = {name: text_of(page_of([item])) for name, item in ITEMS.items()}
    for name, words in {
        "collectives": ("all_reduce float32 sum: bus bandwidth", "#wrong", "524288", "no GPU"),
        "scale": ("ddp bends at 2 ranks", "Efficiency over the number of ranks", "ringside scale"),
        "prediction": ("number of hosts", "limited by", "Not modelled"),
    }.items():
        assert all(word in found[name] for word in words), name
    assert list(pictures_of([ITEMS["collectives"]])) == ["time-1", "bandwidth-1"]
    assert list(pictures_of([ITEMS["scale"]])) == ["efficiency", "step"]
    assert list(pictures_of([ITEMS["prediction"]])) == ["predicted"]


def test_one_page_of_several_has_a_list_and_unique_names():
    items = [*ITEMS.values(), ITEMS["run"]]
    text = page_of(items)
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    links = [value for name, value in Page(text).attributes if name == "href"]
    assert links == ["data:,", "#r1", "#r2", "#r3", "#r4", "#r5"]
    assert {"1-time-1", "4-time", "5-time"} <= set(pictures_of(items))


def test_page_draws_what_was_measured():
    assert list(drawn(RUNS["quiet"])) == ["time", "speed", "turns", "sizes", "memory"]
    text = text_of(page(RUNS["quiet"]))
    for words in (
        "1.4",
        "Fastest here: localsgd",
        "round\n",
        "1 MB",
        "210 (315) MB",
        "within 3 %",
        "TCP over lo",
    ):
        assert words in text
    (dots,) = re.findall(r'class="dot series s0" d="([^"]*)"><title>mpi', drawn(RUNS["quiet"])["turns"])
    assert dots.count("M") == 5 * 4, "every turn of every round"


def test_page_draws_a_negative_part_as_taken_off():
    """A bar has the lengths that its line of text states, and it ends at the step's time."""
    run = measured({"none": 4.0, "ddp": 6.0, "mpi": 3.5}, reference=3.6)
    picture = drawn(run)["time"]
    assert "a negative part, taken off" in picture
    assert "difference of two measured times" in picture
    boxes = {
        title: (float(rect.get("x")), float(rect.get("width")), rect.get("class"))
        for rect in ET.fromstring(picture).iter(f"{SVG}rect")
        if (title := rect.findtext(f"{SVG}title"))
    }
    scale = boxes["none: computing 4.00 ms"][1] / 4.00
    ends = {}
    for title, (left, width, style) in boxes.items():
        arm, stated = title.split(": ")[0], float(title.split()[-2].replace("−", "-"))
        assert width == pytest.approx(abs(stated) * scale, abs=0.7)
        assert ("taken" in style) is (stated < 0)
        ends[arm] = left if stated < 0 else left + width
    assert ends["ddp"] == pytest.approx(8 + 6.0 * scale, abs=0.7)
    assert re.search(r"computing [\d.]+ \+ slowed −0.40", picture)


@pytest.mark.parametrize("factor", [1.0005, 1.02, 1.3, 1.45, 2.0, 3.0, 9.0, 300.0])
@pytest.mark.parametrize("mean", [0.0131, 0.0097, 0.00125])
def test_strip_of_turns_has_two_numbers_that_do_not_touch(factor, mean):
    ticks = _strip_ticks(AxisScale(mean / factor, mean * factor, 56.0, 0.0, is_log=True))
    heights = [y for _, y in ticks]
    assert len(ticks) > 1
    assert len({f"{tick:g}" for tick, _ in ticks}) == len(ticks)
    assert all(low - high >= 15 for low, high in pairwise(heights))


def test_name_of_an_arm_breaks_after_its_joints_alone():
    text = page(a_run({"none": [4.0], "ddp": [6.0], "manual:mode=shared_memory": [5.0]}))
    assert "manual:<wbr/>mode=<wbr/>shared_memory" in text


def test_picture_that_stands_alone_names_run_machine_and_date():
    svg = drawn(RUNS["quiet"])["sizes"]
    texts = " ".join(text.text for text in ET.fromstring(svg).iter(f"{SVG}text"))
    for words in (
        "Time of one all-reduce, by message size",
        "message size (logarithmic)",
        "time of one call (logarithmic)",
        "mlp on MNIST · 2 ranks",
        "2 cores · 2026-",
        "Ringside",
    ):
        assert words in texts
    assert "whisker" in svg
    assert "var(" not in svg


def test_page_marks_parts_below_the_noise():
    run = measured({"none": 4.0, "ddp": 6.0}, reference=4.01)
    assert re.search(r"slowed [−\d.]+ \(below noise\)", drawn(run)["time"])


def test_long_names_are_cut_in_the_titles_of_marks():
    arm = f"ddp:env.NCCL_X={'x' * 5000}"
    titles = re.findall("<title>(.*?)</title>", drawn(a_run({"none": [4.0], arm: [5.0]}))["time"])
    assert max(map(len, titles)) == 200


def test_large_page_is_small_and_quick():
    """64 ranks and 12 arms take under 1 MB and 1 s."""
    arms = ["none", "ddp", "manual", "horovod", "mpi", "zero", "fsdp", "localsgd"]
    arms += [f"ddp:bucket_cap_mb={size}" for size in (1, 2, 5, 10)]
    run = measured(
        {arm: 4.0 + n for n, arm in enumerate(arms)},
        ranks=64,
        turns=4,
        hosts=[Host(f"n{n}", 8) for n in range(8)],
        cores=16,
    )
    analysis = analyse(run)
    started = time.process_time()
    text = render(run, analysis, "html")
    assert time.process_time() - started < 1
    assert len(text.encode()) < 1_000_000


# ---- axes ----


@given(st.floats(1e-9, 1e9), st.floats(1.0001, 1e6))
def test_ticks_lie_between_the_ends_and_are_few(low, factor):
    high = low * factor
    for ticks in (linear_ticks(0.0, high), linear_ticks(low, high), log_ticks(low, high)):
        assert len(ticks) <= 7
        assert ticks == sorted(set(ticks))
    assert len(linear_ticks(0.0, high)) >= 3
    assert all(low * (1 - 1e-9) <= tick <= high * (1 + 1e-9) for tick in log_ticks(low, high))


def test_pictures_leave_out_ratios_in_noise_and_explain_shaded_rounds():
    assert "speed" not in drawn(RUNS["all noise"])
    assert "noisy round" in drawn(RUNS["noisy"])["turns"]
    assert "noisy round" not in drawn(RUNS["quiet"])["turns"]


@pytest.mark.parametrize(
    ("size", "words"), [(2 << 20, "2 MiB"), (1023 << 10, "1023 KiB"), (999.7, "1000 B"), (0.25, "0.25 B")]
)
def test_figures_have_a_unit_that_suits_them_and_no_exponent(size, words):
    assert in_units(size, {"MiB": 1 << 20, "KiB": 1 << 10, "B": 1}) == words


# ---- a browser ----

SCROLLED = """<script>
const box = [...document.querySelectorAll(".wide")].find(box => box.scrollWidth > box.clientWidth);
const name = box.querySelector("td"), hint = box.previousElementSibling;
const before = name.getBoundingClientRect().left;
box.scrollLeft = 200;
const texts = [...document.querySelectorAll("svg")].flatMap(svg => {
  const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
  return [...svg.querySelectorAll("text")].map(text => parseFloat(getComputedStyle(text).fontSize) * scale);
});
parent.document.title = [
  "scrolled " + box.scrollLeft, "moved " + (name.getBoundingClientRect().left - before),
  "hint " + getComputedStyle(hint).display, "legible " + (Math.min(...texts) >= 10),
].join(", ");
</script>"""
NAMES_IN_LINES = """<script>
const lines = [...document.querySelectorAll(".glance td:first-child")].map(cell => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  const tops = [...range.getClientRects()].map(line => line.top);
  return cell.textContent.split(" ")[0] + " " + new Set(tops).size;
});
parent.document.title = lines.join(", ") + ", sideways " + (document.body.scrollWidth - innerWidth > 0);
</script>"""


def on_a_phone(text, script, folder):
    """Return the title that a script gives to a page that is 390 pixels wide."""
    inner = html.escape(text.replace("</body>", f"{script}</body>"))
    # A window of Chromium has 500 pixels or more; a frame may have fewer.
    seen = opened(f'<title></title><iframe style="width: 390px" srcdoc="{inner}"></iframe>', folder)
    return re.findall("<title>(.*?)</title>", seen)[0]


def test_on_a_phone_wide_tables_scroll_beside_names_and_texts_are_legible(tmp_path):
    title = on_a_phone(page(RUNS["quiet"]), SCROLLED, tmp_path)
    assert title == "scrolled 200, moved 0, hint block, legible true"


@pytest.mark.parametrize("other", ["manual", f"ddp:env.NCCL_{'X' * 40}=1"])
def test_names_of_backends_stay_whole_on_a_phone(tmp_path, other):
    text = page(measured({"none": 0.65, "mpi": 0.79, other: 2.89, "ddp": 3.11, "horovod": 3.19}))
    title = on_a_phone(text, NAMES_IN_LINES, tmp_path)
    assert title.endswith("sideways false")
    for name in ("mpi", "ddp", "horovod", *(["manual"] if other == "manual" else [])):
        assert f"{name} 1" in title, title


@pytest.mark.parametrize(
    "items",
    [*([OF_RUNS[name]] for name in ("all noise", "no launch")), [ITEMS["run"]], [*ITEMS.values()]],
    ids=["all noise", "no launch", "quiet", "several"],
)
def test_page_opens_in_a_browser_without_an_error(items, tmp_path):
    text = page_of(items)
    assert text_of(opened(text, tmp_path)) == text_of(text)


@pytest.mark.parametrize("name", sorted(page.stem for page in (ROOT / "docs" / "pages").glob("*.html")))
def test_page_of_the_docs_opens_in_a_browser_without_an_error(name, tmp_path):
    text = (ROOT / "docs" / "pages" / f"{name}.html").read_text()
    assert text_of(opened(text, tmp_path)) == text_of(text)
