"""Test the pages of collectives, scaling and predictions, and of several runs."""

from __future__ import annotations

import re
import sys
from xml.etree import ElementTree as ET

import msgspec
import pytest

from compare.analysis.predict import forecast
from compare.errors import UnavailableError
from compare.report import document_of, of_prediction
from compare.report.formats.html import page_of, pictures_of
from compare.report.formats.png import png_of
from compare.report.pictures.charts import rate_words
from tests.unit.collectives import a_collectives_run, a_sweep_config, a_sweep_launch
from tests.unit.pages import Page, opened, text_of
from tests.unit.predictions import a_measured_run
from tests.unit.runs import EVIL, RUNS
from tests.unit.scales import BENDING, a_scale

PNG = b"\x89PNG\r\n"


def swept():
    """Return a run of two groups over sizes."""
    config = a_sweep_config(end_bytes=1 << 20, factor=16)
    launches = [a_sweep_launch(config, group) for group in config.groups]
    return a_collectives_run(config, launches, left_out={"nccl": "no GPU"})


def predicted():
    return of_prediction.document_of(forecast(a_measured_run(), [2, 4, 8], None, []))


ITEMS = {
    "collectives": document_of(swept(), "html"),
    "scale": document_of(a_scale(BENDING), "html"),
    "prediction": predicted(),
    "run": document_of(RUNS["quiet"], "html"),
}
every_item = pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)


@every_item
def test_page_of_anything_is_self_contained_and_closed(item):
    text = page_of([item])
    seen = Page(text)
    assert not {"script", "img", "iframe", "object", "embed", "base"} & set(seen.tags)
    assert [value for name, value in seen.attributes if "href" in name] == ["data:,"]
    ET.fromstring(re.sub(r"<(meta|link)([^>]*)>", r"<\1\2/>", text.removeprefix("<!doctype html>")))


@every_item
def test_pictures_of_anything_keep_their_labels_inside(item):
    for svg in pictures_of([item]).values():
        root = ET.fromstring(svg)
        width, height = map(float, root.get("viewBox").split()[2:])
        assert root.find("{http://www.w3.org/2000/svg}desc").text
        assert not re.search(r'(width|height)="-|nan|inf', svg)
        for text in root.iter("{http://www.w3.org/2000/svg}text"):
            x, y, wide = float(text.get("x")), float(text.get("y")), 6.2 * len(text.text or "")
            style = text.get("class").split()
            left = x - wide if {"figure", "end"} & set(style) else x - wide / 2 if "tick" in style else x
            assert left >= -1
            assert left + wide <= width + 1
            assert 0 < y <= height


def test_pages_show_what_their_tables_show():
    found = {name: text_of(page_of([item])) for name, item in ITEMS.items()}
    for name, words in {
        "collectives": (
            "all_reduce float32 sum: bus bandwidth",
            "#wrong",
            "524288",
            "no GPU",
        ),
        "scale": ("ddp bends at 2 ranks", "Efficiency over the number of ranks", "compare scale"),
        "prediction": ("8 hosts", "limited by", "Not modelled"),
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


def test_page_of_several_opens_in_a_browser_without_an_error(tmp_path):
    text = page_of([*ITEMS.values()])
    assert text_of(opened(text, tmp_path)) == text_of(text)


def test_hostile_names_on_these_pages_are_harmless():
    run = msgspec.structs.replace(swept(), left_out={"nccl": EVIL}, command=[EVIL])
    series = a_scale(BENDING)
    series = msgspec.structs.replace(series, series=msgspec.structs.replace(series.series, command=[EVIL]))
    text = page_of([document_of(run, "html"), document_of(series, "html")])
    assert not {"\x1b", "\x00", "\u202e"} & set(text)
    assert "<script" not in text
    assert "&lt;script&gt;" in text


@pytest.mark.parametrize(("rate", "words"), [(2e9, "2 GB/s"), (5e6, "5 MB/s"), (1.5e3, "1.5 kB/s")])
def test_rates_have_a_unit_that_suits_them(rate, words):
    assert rate_words(rate) == words


# ---- PNG ----


def test_png_of_a_picture_has_its_colours_and_labels():
    svg = pictures_of([ITEMS["run"]])["time"]
    try:
        with_labels, without = png_of([svg, re.sub("<text.*?</text>", "", svg)])
    except UnavailableError as error:
        assert "needs a font" in error.what  # noqa: PT017 -- a machine without fonts must refuse
        return
    assert with_labels.startswith(PNG)
    assert len(with_labels) > len(without) + 1000


def test_png_without_its_library_is_refused_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(UnavailableError) as caught:
        png_of([])
    assert "resvg-py" in caught.value.remedy
