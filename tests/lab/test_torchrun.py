"""A real launcher on real hosts: torchrun, started through ssh, trains one model on all of them."""

import json
import sys

import pytest

from compare import data
from compare.job import LaunchFiles
from compare.results import RankResult, read_json

pytestmark = [pytest.mark.lab, pytest.mark.hosts]


@pytest.mark.parametrize("slots", [(1, 1), (2, 1)])
def test_torchrun_trains_one_model_on_two_hosts(make_lab, slots):
    lab = make_lab(2)
    source = data.resolve("digits", lab.folder / "data")
    asked = {
        "hosts": "".join(f"n{n} slots={count}\n" for n, count in enumerate(slots, 1)),
        "address": lab.hosts[0].address,
        "data": source.directory.replace(str(lab.folder), "/run/lab"),
        "mirrored": "/run/lab/mirrored",
    }
    parent = [sys.executable, "-m", "tests.lab.torchrun_parent", json.dumps(asked)]
    done = lab.login.run(parent, timeout_seconds=120)
    files = LaunchFiles(lab.folder / "mirrored")
    said = "\n".join(path.read_text() for path in files.directory.glob("*.log"))
    assert (done.returncode, done.stdout) == (0, "[0, 0]\n"), done.stderr + said
    results = [read_json(files.result(rank), RankResult) for rank in range(sum(slots))]
    hosts = [f"n{n}" for n, count in enumerate(slots, 1) for _ in range(count)]
    assert [result.host for result in results] == hosts
    assert len({result.final_hash for result in results}) == 1
    assert results[0].final_hash != results[0].initial_hash
