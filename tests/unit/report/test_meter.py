"""Test what the report of a metered script says."""

import csv
import io
import re

import msgspec
import pytest

from compare.report import document_of, write
from compare.report.formats.terminal import plain_text
from compare.schema.metered import MeteredRank, MeterSettings, Synchronised
from tests.unit.metered import a_block, a_metered, blocks_of_pairs

EVEN = (6e-3, 6e-3)


def shown(**fields):
    return " ".join(plain_text(document_of(a_metered(**fields)), 80).split())


def test_meter_states_the_cost_as_a_share_with_its_interval():
    text = shown(exposed=4e-3)
    assert "exposed sync 4.08 (4.04–4.13) 39 % (39–40)" in text
    assert text.endswith("Synchronising costs 4.08 ms of a step of 10.43 ms: 39 % (39–40).")


def test_meter_that_finds_no_cost_says_how_much_it_could_miss():
    text = shown(blocks=blocks_of_pairs(20, 0.0, EVEN))
    assert "below noise" in text
    assert "costs nothing that shows: at most 0.9 % of a step" in text
    assert "Next:" not in text


@pytest.mark.parametrize(
    ("isolated", "hidden"),
    [(8e-3, " 50 %"), (2e-3, " – none"), (40e-3, " 90 %")],
)
def test_meter_says_how_much_of_the_collectives_is_hidden(isolated, hidden):
    blocks = blocks_of_pairs(20, 4e-3, EVEN)
    blocks += [a_block("isolated", n, [isolated] * 2, steps=10) for n in range(4)]
    assert re.search(rf"of these hidden( [\d.]+ \([\d.]+–[\d.]+\))?{hidden}", shown(blocks=blocks))


def test_meter_names_the_straggler_and_asks_for_equal_work_first():
    text = shown(local=(6e-3, 9e-3), exposed=1e-3)
    assert "1 ◀ straggler" in text
    assert "Why: straggler: rank 1 on localhost computes for" in text
    assert "give the ranks equal work first" in text


def test_meter_says_how_many_steps_were_put_back_and_what_they_took():
    assert "Of 2000 steps 520 were measured without synchronising and put back. It kept 14 MB" in shown()


@pytest.mark.parametrize(
    ("way", "arms"),
    [
        ("ddp", "ddp:comm_hook=fp16"),
        ("horovod", "horovod:compression=fp16"),
        ("by_hand", "manual:mode=overlap"),
    ],
)
def test_meter_proposes_arms_beside_the_scripts_own_way(way, arms):
    text = shown(synchronised=[Synchronised(way=way, name="It")])
    assert "ringside run --workload own.py:make" in text
    assert arms in text
    lines = write(document_of(a_metered(synchronised=[Synchronised(way=way, name="It")])), "table").split(
        "\n"
    )
    command = lines.index("  ringside run --workload own.py:make --batch-size N \\")
    assert max(map(len, lines[command - 1 : command + 3])) <= 80


@pytest.mark.parametrize(("size", "words"), [(0, "0 B"), (84, "84 B"), (8400, "8.4 kB"), (4.7e6, "4.7 MB")])
def test_meter_shows_sizes_in_the_largest_unit_that_they_fill(size, words):
    one = Synchronised(way="ddp", name="It", gradient_bytes=int(size))
    assert f"It, 0 gradients, {words}" in shown(synchronised=[one])


def test_meter_with_too_few_steps_says_how_many_it_needs():
    text = shown(pairs=2, steps=150, ended="The script ended after 150 steps.")
    assert "2 of 20 pairs were measured. The script ended after 150 steps." in text
    assert "2 pairs cannot tell a cost from noise; 3 can." in text
    assert text.endswith("but that is open.")


def test_meter_whose_interval_is_wide_says_what_would_narrow_it():
    blocks = []
    for pair in range(6):
        blocks += [a_block("synchronised", pair, [(10 + 8 * (-1) ** pair) * 1e-3] * 2)]
        blocks += [a_block("local", pair, [9e-3] * 2)]
    text = shown(blocks=blocks)
    assert re.search(r"is open: from nothing to \d+ % of a step .* halve the interval: --pairs 24\.$", text)


@pytest.mark.parametrize(
    ("ranks", "threads", "waits", "advice"), [(2, 2, True, True), (3, 1, True, False), (2, 1, False, False)]
)
def test_meter_says_that_threads_wait_for_cpus(ranks, threads, waits, advice):
    facts = [
        MeteredRank(rank=n, host="localhost", pid=n, device="cpu", threads=threads, cpus=[0, 1])
        for n in range(ranks)
    ]
    text = shown(ranks=facts, local=(6e-3,) * ranks)
    together = f"{ranks} ranks with {ranks * threads} threads together share 2 CPUs, so they wait"
    assert (together in text) is waits
    assert ("Set OMP_NUM_THREADS=1," in text) is advice


def test_meter_names_six_of_hundreds_of_hosts_whose_threads_wait():
    facts = [
        MeteredRank(rank=n, host=f"n{n}", pid=n, device="cpu", threads=4, cpus=[0, 1]) for n in range(300)
    ]
    text = shown(ranks=facts, local=(6e-3,) * 300)
    assert text.count("together share") == 1
    assert "n0, n1, n2, n3, n4, n5 and 294 more: 1 rank with 4 threads together share 2 CPUs" in text


def test_meter_of_many_ranks_shows_the_slowest():
    local = [6e-3 + rank * 1e-5 for rank in range(20)]
    text = shown(local=local)
    assert "Computing of the 8 slowest ranks" in text
    assert " 12 localhost" in text
    assert " 11 localhost" not in text


@pytest.mark.parametrize(("pairs", "before"), [(5, "the last pair"), (20, "all phases were measured")])
def test_meter_of_a_killed_script_is_marked_incomplete(pairs, before):
    assert re.search(rf"INCOMPLETE: [^.]* before {before}\.", shown(pairs=pairs, ended=""))


@pytest.mark.parametrize(("difference", "found"), [(0.0, "no difference"), (1e-3, "a difference")])
def test_meter_of_an_aa_test_shows_the_ratio_alone(difference, found):
    blocks = blocks_of_pairs(20, difference, EVEN, other="aa")
    text = shown(blocks=blocks, settings=MeterSettings(aa=True))
    assert f"A/A test: {found} between equal blocks" in text
    assert "exposed sync" not in text
    assert "without synchronising" not in text


def test_meter_that_only_counted_says_so():
    text = shown(pairs=0, blocks=[], settings=MeterSettings(pairs=0))
    assert text.endswith("Nothing was measured of train.py. It only counted steps.")


def test_meter_has_a_page_with_the_settings_and_a_picture():
    page = write(document_of(a_metered(), "html"), "html")
    assert "train.py: what synchronising costs" in page
    assert "each all-reduce of DistributedDataParallel" in page
    assert "Step time in each pair of blocks" in page


def test_meter_as_csv_has_a_record_for_every_figure_rank_and_phase():
    rows = list(csv.DictReader(io.StringIO(write(document_of(a_metered()), "csv"))))
    by_name = {(row["figure"], row["rank"]): row for row in rows}
    assert float(by_name["exposed_share", ""]["mean"]) == pytest.approx(0.39, abs=0.01)
    assert float(by_name["local_seconds", "1"]["low"]) < 6.5e-3
    assert float(by_name["waiting_seconds", "0"]["mean"]) == 4e-3


def test_meter_says_that_other_processes_used_the_cpus():
    loaded = [
        msgspec.structs.replace(block, cpu_seconds=[0.1, 0.1], busy_seconds=[0.2 + sum(block.seconds)] * 2)
        for block in blocks_of_pairs(20, 4e-3)
    ]
    assert "Noisy: other processes used more than 10 % of the CPUs in the blocks." in shown(blocks=loaded)
    assert "Noisy" not in shown()
