"""What ranks hold, against the arithmetic that predicts it."""

import json
import os
import subprocess
import sys
from functools import cache

import msgspec
import pytest

from backends import BACKENDS
from compare.analysis.memory import Held, divide_memory
from compare.schema.arms import parse_arm
from compare.schema.memory import ModelParameter
from tests.comparing import ROOT
from tests.contract.memory import ARMS, MODELS

WITHIN = 0.05
WORLDS = (1, 2, 4)
KINDS = Held.__struct_fields__
SHARDS = {arm: BACKENDS[parse_arm(arm).backend].shards for arm in ARMS}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def observe(tmp_path_factory):
    """Return a function that returns what each of so many ranks observed, in order."""
    folder = tmp_path_factory.mktemp("memory")
    command = [sys.executable, "-m", "tests.contract.memory", folder, *map(str, WORLDS)]
    single = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        command, cwd=ROOT, env=single, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr

    @cache
    def observed(ranks):
        return [json.loads((folder / f"{rank}-of-{ranks}.json").read_text()) for rank in range(ranks)]

    return observed


def pairs(ranks, model, arm, shards):
    """Yield each kind's name with its bytes as held, and as predicted from the control and the parameters."""
    parameters = msgspec.convert(ranks[0][model]["parameters"], list[ModelParameter])
    held = [rank[model]["held"] for rank in ranks]
    trained = sum(one.bytes for one in parameters if one.trained)
    state = held[0]["none"]["optimizer_state_bytes"] / trained
    predicted = divide_memory(parameters, shards, len(ranks), state, held[0][arm]["first_layers"])
    for rank, expected in zip(held, predicted, strict=True):
        yield from ((kind, rank[arm][kind], getattr(expected, kind)) for kind in KINDS)


@pytest.mark.parametrize("arm", ARMS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("ranks", WORLDS)
def test_held_bytes_are_within_5_percent_of_the_arithmetic(observe, ranks, model, arm):
    for kind, held, predicted in pairs(observe(ranks), model, arm, SHARDS[arm]):
        assert held == pytest.approx(predicted, rel=WITHIN), kind


@pytest.mark.parametrize("arm", [arm for arm in ARMS if SHARDS[arm] != "nothing"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_arithmetic_of_other_shards_is_further_than_5_percent(observe, ranks, arm):
    """Show that the test above would fail for a wrong formula."""
    for other in {*SHARDS.values()} - {SHARDS[arm]}:
        triples = pairs(observe(ranks), "uneven", arm, other)
        assert any(held != pytest.approx(predicted, rel=WITHIN) for _, held, predicted in triples), other


@pytest.mark.parametrize("ranks", [2, 4])
def test_fsdp_gathers_one_unit_at_a_time_unless_it_keeps_them(observe, ranks):
    gathered = {arm: held["library_bytes"] for arm, held in observe(ranks)[0]["even"]["held"].items()}
    whole = observe(ranks)[0]["even"]["held"]["ddp"]["parameter_bytes"]
    assert 0 < gathered["fsdp"] < whole
    assert gathered["fsdp:reshard_after_forward=false"] == gathered["fsdp:units=model"] == whole
    assert gathered["none"] == 0
