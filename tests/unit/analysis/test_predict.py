"""Test predictions: the model by hand, and on launches that were recorded."""

from __future__ import annotations

import statistics

import msgspec
import pytest

from compare.analysis.collectives import FORMS
from compare.analysis.cost_model import (
    MIB,
    Call,
    Curve,
    Gradient,
    Network,
    ddp_buckets,
    expected_maximum,
    predict_call,
    simulate_calls,
)
from compare.analysis.measured import Target, measured_launches, predict_step, why_unpredictable
from compare.analysis.predict import compare_with, forecast, validated_error, with_measured_link
from compare.errors import OutputError
from compare.report import FORMATS, write
from compare.report.of_prediction import document_against, document_of
from compare.schema.arms import parse_arm
from compare.schema.hosts import Host, parse_link
from compare.schema.memory import Unfit
from compare.schema.results import StepCall
from compare.system.files import read_json
from tests.bench.predictions import RECORD, Record, interval_error, is_covered, judge, model_errors
from tests.unit.factories import a_block, a_phased_block
from tests.unit.predictions import COMPUTING, a_measured_run

RING = next(form for form in FORMS["all_reduce"] if form.name == "ring")
CURVE = Curve(tuple((size, 0.001 + 0.040 * size / MIB) for size in (1024, MIB, 4 * MIB)))
MS = 1e-3


def calls_of(seconds):
    return lambda _: Call(0.0, seconds)


def a_step_in_shards(*collectives, library="torch.distributed gloo", **changes):
    """A run of fsdp whose step computes for 20 ms; an all-reduce of a message takes 40 ms."""
    calls = [StepCall(collective=name, message_bytes=MIB, **changes) for name in collectives]
    attested = {
        "group": {"transport": "TCP over eth0", "library": library},
        "replica": {},
        "threads": 1,
    }
    return a_measured_run(
        arm="fsdp",
        calls=calls,
        message_bytes=[MIB] * len(calls),
        attestation=attested,
        blocks=[
            a_block(80.0),
            a_block(20.0, mode="reference"),
            a_phased_block("reference", **COMPUTING),
        ],
    )


# ---- one call ----


def test_curve_meets_its_points_and_continues_its_bandwidth():
    for nbytes, seconds in CURVE.points:
        assert CURVE.seconds(nbytes) == pytest.approx(seconds)
    assert CURVE.seconds(8) == pytest.approx(CURVE.points[0][1])
    assert CURVE.seconds(8 * MIB) == pytest.approx(0.321)


def test_call_among_more_ranks_takes_the_bytes_and_rounds_of_its_form():
    call = predict_call(CURVE, RING, 2, MIB, Network(4))
    assert call.latency == pytest.approx(0.003)
    assert call.wire == pytest.approx(0.060)
    slower = predict_call(CURVE, RING, 2, MIB, Network(2, slowdown=10, added_latency=0.002))
    assert slower.latency == pytest.approx(0.005)
    assert slower.wire == pytest.approx(0.400)
    assert predict_call(CURVE, RING, 2, 1024, Network(2, 1.0, -1.0)).latency == 0, "never below zero"


def test_expected_maximum_is_the_mean_over_all_resamples():
    residuals = [3.0, 1.0, 2.0]
    pairs = [max(a, b) for a in residuals for b in residuals]
    assert expected_maximum(residuals, 2) == pytest.approx(statistics.fmean(pairs))


# ---- a step in shards ----


def test_step_in_shards_takes_half_an_all_reduce_for_a_gather():
    run = a_step_in_shards("all_gather", "reduce_scatter")
    assert why_unpredictable(run, parse_arm("fsdp")) == ""
    (launch, *_) = measured_launches(run, parse_arm("fsdp"))
    assert launch.shares == [0.5, 1.0]
    here = predict_step(launch, Target(hosts=2))
    assert here.seconds == pytest.approx(80 * MS)
    assert here.parts["bandwidth"] + here.parts["latency"] == pytest.approx(1.5 * 40 * MS)
    assert here.parts["copies"] == pytest.approx(0, abs=1e-9)
    more = predict_step(launch, Target(hosts=4))
    assert more.parts["bandwidth"] == pytest.approx(1.5 * here.parts["bandwidth"])
    assert more.parts["latency"] == pytest.approx(3 * here.parts["latency"])


def test_prediction_of_shards_is_beyond_what_was_validated():
    (prediction,) = forecast(a_step_in_shards("all_gather", "reduce_scatter"), [2]).predictions
    assert prediction.beyond_validation
    assert prediction.error == validated_error("", "shards")


def test_arm_that_was_timed_alone_for_lack_of_memory_is_not_predicted():
    arm = parse_arm("fsdp")
    bare = Unfit(arm=arm, round=1, stage="parity", limit_bytes=1 << 30, limit="GPU")
    run = msgspec.structs.replace(a_step_in_shards("all_gather", "reduce_scatter"), bare=[bare])
    assert why_unpredictable(run, arm).startswith("it was timed without its collectives")


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (a_step_in_shards("all_reduce", "broadcast"), "no model of its broadcasts"),
        (a_step_in_shards("all_gather", ranks=[0, 1]), "no model of replicas in shards"),
        (a_step_in_shards("all_gather", library="torch.distributed nccl"), "overlap with computing"),
    ],
)
def test_other_steps_in_shards_are_not_predicted(run, reason):
    assert reason in why_unpredictable(run, parse_arm("fsdp"))


# ---- a step's timeline ----

GRADIENTS = [Gradient(MIB, 30 * MS), Gradient(MIB, 20 * MS), Gradient(MIB, 10 * MS), Gradient(MIB, 0.0)]


@pytest.mark.parametrize(
    ("schedule", "messages", "call", "end"),
    [
        pytest.param("after", [4 * MIB], 40, 70, id="after backward"),
        pytest.param("overlap", [MIB] * 4, 5, 35, id="all but the last call overlap"),
        pytest.param("overlap", [MIB] * 4, 40, 160, id="calls wait for each other"),
        pytest.param("overlap", [MIB, 3 * MIB], 20, 50, id="a bucket waits for its last gradient"),
        pytest.param("fused", [MIB] * 4, 20, 60, id="what is ready goes in one call"),
    ],
)
def test_timeline_ends_with_the_last_call(schedule, messages, call, end):
    found, _ = simulate_calls(
        schedule, GRADIENTS, messages, 30 * MS, calls_of(call * MS), fusion_bytes=64 * MIB
    )
    assert found == pytest.approx(end * MS)


@pytest.mark.parametrize(("cap", "buckets"), [(25, [1, 3]), (1, [1, 1, 1, 1]), (2, [2, 2]), (3, [3, 1])])
def test_ddp_closes_a_bucket_that_reaches_its_cap(cap, buckets):
    assert ddp_buckets(GRADIENTS, cap) == [count * MIB for count in buckets]


# ---- recorded launches ----


@pytest.fixture(scope="module")
def record():
    return read_json(RECORD, Record)


def with_changes(record, **changes):
    return Record([msgspec.structs.replace(one, **changes) for one in record.base], record.cells)


def step_errors(record, form="ring"):
    rings = {one.arm for one in record.base if one.form == form}
    return [abs(cell.error) for cell in judge(record) if cell.arm in rings]


def within_bounds(errors):
    return statistics.fmean(errors) <= 0.10 and max(errors) <= 0.20


def test_recorded_all_reduces_of_gloo_are_predicted_within_the_bounds(record):
    errors = [abs(cell.call_error) for cell in judge(record) if cell.library == "torch.distributed gloo"]
    assert statistics.median(errors) <= 0.05
    assert max(errors) <= 0.10


def test_recorded_steps_are_predicted_within_bounds_by_the_true_form_alone(record):
    """Only rings change, so that no other arm's error counts."""
    assert within_bounds(step_errors(record))
    rings = Record([one for one in record.base if one.form == "ring"], record.cells)
    assert within_bounds(step_errors(rings))
    assert not within_bounds(step_errors(with_changes(rings, form="linear"), form="linear"))


@pytest.mark.parametrize("extreme", ["if nothing overlapped", "if all did"])
def test_timeline_is_nearer_than_both_extremes(record, extreme):
    errors = model_errors(record)
    assert errors["by our model"] < errors[extreme]


def test_intervals_from_other_cells_hold_nine_tenths(record):
    """No cell is judged by an interval that it was part of."""
    cells = judge(record)
    assert sum(is_covered(cell, cells) for cell in cells) >= 0.9 * len(cells)


def test_validated_errors_are_those_of_the_recorded_cells(record):
    cells = judge(record)
    kinds = {cell.kind for cell in cells}
    for kind in kinds:
        found = interval_error([cell for cell in cells if cell.kind == kind])
        assert found <= validated_error(*kind) < found + 0.03
    largest = max(validated_error(*kind) for kind in kinds)
    assert validated_error("torch.distributed nccl", "overlap") == largest
    assert validated_error("torch.distributed gloo", "after", like_cells=False) == largest


@pytest.mark.parametrize("rate", ["200mbit", "500mbit", "10gbit"])
def test_calls_that_are_quicker_in_the_step_are_so_at_faster_rates(record, rate):
    manual = next(one for one in record.base if one.arm == "manual")
    calls = (
        manual.step_seconds - predict_step(manual, Target(hosts=2)).parts["copies"] - manual.compute_seconds
    )
    target = Target(hosts=2, link=parse_link(rate))
    whole, half = (
        predict_step(msgspec.structs.replace(manual, step_seconds=manual.compute_seconds + step), target)
        for step in (calls, calls / 2)
    )
    added = whole.seconds - manual.compute_seconds
    assert added > 0
    assert half.seconds - manual.compute_seconds == pytest.approx(added / 2, rel=0.01)


def test_time_that_calls_save_does_not_grow_with_them(record):
    """A little noise would become much where little is exposed."""
    manual = next(one for one in record.base if one.arm == "manual")
    rest = predict_step(manual, Target(hosts=2)).parts["copies"]
    quicker = msgspec.structs.replace(manual, step_seconds=manual.step_seconds - rest - 0.001)
    for target in (Target(hosts=4), Target(hosts=2, link=parse_link("1mbit,1s"))):
        assert predict_step(quicker, target).parts["copies"] == pytest.approx(-0.001)


# ---- runs ----


def test_forecast_of_the_measured_hosts_is_the_measured_step():
    (found,) = forecast(a_measured_run(), [2]).predictions
    assert found.step_seconds.mean == pytest.approx(0.060)
    assert (found.limit, found.beyond_validation) == ("bandwidth", False)


def test_intervals_are_never_narrower_than_the_validated_error():
    for found in forecast(a_measured_run(), [2, 4, 16], parse_link("10gbit")).predictions:
        step = found.step_seconds
        assert step.high / step.mean >= 1 + found.error - 1e-9
        assert step.mean / step.low >= 1 + found.error - 1e-9


MEASURED = a_measured_run()
OVER_SHARED_MEMORY = {"group": {"transport": "shared memory"}}
OVER_UNKNOWN = {"group": {"transport": "TCP", "library": "MPICH 4"}}


def with_config(**changes):
    return msgspec.structs.replace(MEASURED, config=msgspec.structs.replace(MEASURED.config, **changes))


def on_one_host():
    return msgspec.structs.replace(MEASURED, hosts=[Host("n1", 2)], cores_by_host=[2])


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (a_measured_run(ranks=1), "one rank"),
        (a_measured_run(sweep=[]), "no sweep"),
        (a_measured_run(gradients=[]), "no times of gradients"),
        (a_measured_run(message_bytes=[]), "not an all-reduce"),
        (a_measured_run(blocks=[a_block(60.0)]), "without synchronisation"),
        (a_measured_run(attestation=OVER_SHARED_MEMORY), "travelled by shared memory"),
        (a_measured_run(attestation=OVER_UNKNOWN), "MPICH 4 is not known"),
        (with_config(accumulate=2), "passes"),
        (on_one_host(), "one host measured no network"),
    ],
)
def test_run_that_cannot_tell_is_refused(run, reason):
    with pytest.raises(OutputError, match="Nothing can be predicted") as refused:
        forecast(run, [4])
    assert reason in refused.value.found
    assert refused.value.remedy


def test_against_another_run_shows_the_error_of_each_arm():
    against = compare_with(MEASURED, MEASURED)
    (found,) = against.comparisons
    assert against.same_network
    assert found.error == pytest.approx(0.0)
    assert found.covered


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "document", [document_of(forecast(MEASURED, [2, 4])), document_against(compare_with(MEASURED, MEASURED))]
)
def test_every_format_shows_what_is_not_modelled_or_the_figures(document, form):
    shown = write(document, form)
    assert "manual" in shown
    assert form == "csv" or "Not modelled" in " ".join(shown.split())


def test_against_a_run_of_other_settings_is_refused():
    with pytest.raises(OutputError, match="cannot be compared") as refused:
        compare_with(MEASURED, with_config(batch_size_per_rank=MEASURED.config.batch_size_per_rank * 2))
    assert "batch_size_per_rank" in refused.value.found


def test_against_names_the_arms_of_one_run_alone():
    other = with_config(arms=(*MEASURED.config.arms, parse_arm("mpi")))
    assert compare_with(MEASURED, other).left_out == {"mpi": "this run did not launch it"}


@pytest.mark.parametrize("library", ["torch.distributed nccl", "Horovod 0.28.1"])
def test_library_without_such_cells_is_not_validated(library):
    """Horovod has cells of fused calls alone."""
    transport = "NCCL" if "nccl" in library else "TCP over eth0"
    attestation = {"group": {"transport": transport, "library": library}, "replica": {"mode": "flat"}}
    (found,) = forecast(a_measured_run(attestation=attestation | {"threads": 1}), [3]).predictions
    assert found.beyond_validation
    assert found.error == validated_error("no library", "after")


@pytest.mark.parametrize(
    ("hosts", "link", "rounds", "beyond"),
    [
        (4, "1gbit", 2, False),
        (5, "1gbit", 2, True),
        (4, "2500mbit", 2, False),
        (4, "2600mbit", 2, True),
        (4, "500mbit", 2, False),
        (4, "400mbit", 2, True),
        (4, "1gbit,1ms", 2, True),
        (4, "1gbit", 1, True),
    ],
)
def test_prediction_that_no_cell_is_like_is_marked(hosts, link, rounds, beyond):
    run = with_measured_link(a_measured_run(rounds=rounds), parse_link("1gbit"))
    (found,) = forecast(run, [hosts], parse_link(link)).predictions
    assert found.beyond_validation is beyond
    assert (found.error > validated_error("torch.distributed gloo", "after")) is (
        beyond or found.regime == "other"
    )


def test_rate_that_is_assumed_is_not_validated():
    assert forecast(on_one_host(), [4], parse_link("1gbit")).assumed_goodput
    assert forecast(MEASURED, [3], parse_link("1gbit")).predictions[0].beyond_validation
    known = with_measured_link(MEASURED, parse_link("1gbit"))
    assert not forecast(known, [3], parse_link("1gbit")).predictions[0].beyond_validation
