"""Test ``ringside.meter`` around a loop in this process, which is the only rank."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress

import pytest
import torch
import torch.distributed as dist
from torch.optim.optimizer import _global_optimizer_pre_hooks

import ringside
from compare.meter import SETTINGS_VARIABLE
from compare.schema.metered import METER_FILE, MeterSettings, read_metered

pytestmark = pytest.mark.usefixtures("frozen_torch")
FEW = {"pairs": 2, "block": 3, "warmup": 3}


@pytest.fixture(scope="module")
def model():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    dist.destroy_process_group()


def train(model, steps=60):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()


def hooks():
    return len(_global_optimizer_pre_hooks)


def test_result_is_that_of_the_steps_inside_and_the_hooks_go(model, tmp_path):
    before = hooks()
    with ringside.meter(**FEW, output=tmp_path) as measured:
        assert hooks() == before + 1
        train(model)
    assert hooks() == before
    train(model, 7)
    assert measured.result.stored == read_metered(tmp_path / METER_FILE)
    assert measured.result.folder == tmp_path
    assert measured.result.stored.steps == 60
    assert measured.result.stored.settings == MeterSettings(**FEW)
    table = measured.result.table()
    assert "exposed_share" in set(table["figure"])


def test_an_error_in_the_loop_is_the_scripts_own_and_the_record_is_kept(model, tmp_path):
    with suppress(ZeroDivisionError), ringside.meter(**FEW, output=tmp_path) as measured:
        train(model, 15)
        _ = 1 / 0
    assert hooks() == 0
    assert "The script ended after 15 steps." in measured.result.stored.ended
    assert model.require_backward_grad_sync


def test_a_result_that_is_not_there_is_explained(tmp_path):
    with (
        ringside.meter(output=tmp_path) as measured,
        pytest.raises(ringside.RingsideError, match="has no result yet"),
    ):
        _ = measured.result
    with pytest.raises(ringside.RingsideError) as error:
        _ = measured.result
    assert error.value.found == "No rank took a step of an optimizer of torch."
    assert not list(tmp_path.iterdir())


def test_a_record_that_cannot_be_written_is_explained_after_the_loop(model, tmp_path):
    (tmp_path / "file").touch()
    with ringside.meter(**FEW, output=tmp_path / "file" / "folder") as measured:
        train(model)
    with pytest.raises(ringside.RingsideError, match="could not write its record"):
        _ = measured.result


@pytest.mark.parametrize(
    ("setting", "remedy"),
    [
        ({"block": 0}, "Give a whole number of at least 1."),
        ({"pairs": -1}, "Give a whole number of at least 0."),
        ({"warmup": "30"}, "Give a whole number of at least 1."),
        ({"aa": 1}, "Give True or False."),
    ],
)
def test_wrong_setting_is_refused(setting, remedy):
    ((name, value),) = setting.items()
    with pytest.raises(ringside.RingsideError) as error, ringside.meter(**setting):
        pass
    assert error.value.what == f"ringside.meter: {name} cannot be {value!r}."
    assert error.value.remedy == remedy


def test_a_process_that_is_metered_already_is_refused(monkeypatch):
    with ringside.meter(), pytest.raises(ringside.RingsideError) as error, ringside.meter():
        pass
    assert error.value.found == "Another is open."
    monkeypatch.setenv(SETTINGS_VARIABLE, "{}")
    with pytest.raises(ringside.RingsideError, match="is metered already"), ringside.meter():
        pass


def test_the_name_is_the_context_and_its_module_is_the_command(tmp_path):
    code = (
        "import ringside.meter; assert ringside.meter().__enter__; from ringside import meter; print(meter)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("<function meter")
    command = [sys.executable, "-W", "error", "-m", "ringside.meter", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.startswith("usage: python -m ringside.meter")
