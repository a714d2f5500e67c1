"""Prove cases in ranks that are forked from one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from compare.analysis.parity import check_gates
from compare.data.own import own_source
from compare.schema.arms import parse_arm
from compare.schema.config import RunConfig
from compare.schema.job import Job, RankFailure
from compare.schema.launch_files import LaunchFiles
from compare.schema.parity import Fingerprint
from compare.schema.results import Gate, RankResult
from compare.system.files import read_json, write_json
from tests.proof.case import Case
from tests.waiting import free_port

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {"ranks": 2, "steps": 32, "warmup_steps": 2, "batch_size_per_rank": 4, "stall_seconds": 10.0}
"""There are more steps than in the proof, for what begins late."""


@dataclass(frozen=True)
class Verdict:
    """What the gates say of a case."""

    ranks: list[RankResult] = field(default_factory=list)
    gates: list[Gate] = field(default_factory=list)
    failures: list[RankFailure] = field(default_factory=list)
    logs: str = ""
    silent: bool = False
    """Whether a rank ended without results and without a reason."""

    @property
    def outcome(self) -> str:
        """The worst of all gates; without any, ``refused`` if every rank says why, else ``crashed``."""
        found = {gate.outcome for gate in self.gates}
        refused = "refused" if self.failures and not self.silent else "crashed"
        return next((one for one in ("failed", "incomparable", "nothing", "passed") if one in found), refused)

    @property
    def words(self) -> str:
        """What a user reads of the gates or the ranks' errors."""
        lines = [
            f"{gate.name}: {gate.outcome}. {gate.what} {gate.found} {gate.remedy}".rstrip()
            for gate in self.gates
        ]
        return "\n".join(
            [*lines, *(f"rank {one.rank}: {one.message} ({one.where})" for one in self.failures)]
        )


class Ranks:
    """The process that forks ranks."""

    def __init__(self) -> None:
        single = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.proof.ranks"],
            cwd=ROOT,
            env=os.environ | single | {"GLOO_SOCKET_IFNAME": "lo"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "ready"

    def launch(self, directory: Path, world: int, mutation: str) -> list[int]:
        """Run the job of a folder, and return the ranks' exit statuses."""
        request = {"directory": str(directory), "world": world, "port": free_port(), "mutation": mutation}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        """End the process, and wait for it."""
        self._process.communicate(timeout=10)

    def _answer(self):
        return json.loads(self._process.stdout.readline() or "null")


@pytest.fixture(scope="session")
def ranks():
    """Start the process that forks ranks, once."""
    started = Ranks()
    yield started
    started.end()


@pytest.fixture(scope="session")
def prove(ranks, tmp_path_factory):
    """Return a function that trains a case and judges its ranks."""
    folder = tmp_path_factory.mktemp("proofs")

    def proven(case: Case, repeated: Sequence[Fingerprint] = ()) -> Verdict:
        """Launch a case; ``repeated`` are the fingerprints of a proven launch of its arm."""
        arm = parse_arm(case.arm)
        workload = f"{case.file.name}:{case.name}"
        config = RunConfig(arms=(arm,), model=workload, **SETTINGS | case.settings)
        job = Job(
            config=config,
            arm=arm,
            affinity=sorted(os.sched_getaffinity(0)),
            number=1,
            launched_at=time.time(),
            dataset=own_source(f"{case.file}:{case.name}"),
            proven=dict(enumerate(repeated)),
        )
        files = LaunchFiles(Path(tempfile.mkdtemp(dir=folder)))
        write_json(files.job, job)
        statuses = ranks.launch(files.directory, config.ranks, case.mutation)
        held = range(config.ranks)
        logs = "\n".join(files.log(rank).read_text() for rank in held if files.log(rank).exists())
        if statuses == [0] * config.ranks:
            results = [read_json(files.result(rank), RankResult) for rank in held]
            return Verdict(results, check_gates(arm, results), logs=logs)
        failures = [read_json(file, RankFailure) for file in map(files.failure, held) if file.exists()]
        silent = len(failures) < config.ranks
        return Verdict(failures=failures, logs=f"exit statuses {statuses}\n{logs}", silent=silent)

    return proven
