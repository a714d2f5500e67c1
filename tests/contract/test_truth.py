"""Test that attestation states what runs, also in a contradicting environment."""

from __future__ import annotations

import pytest

from compare.schema.arms import parse_arm
from tests.contract import promises
from tests.contract.plan import Launch, Meeting, Member

CYCLE_MILLISECONDS = 5


def launch_of(launcher: str, arm: str) -> Launch:
    return Launch(launcher, (Meeting(arm, (Member(arm),)),), refusals=True, group_checks=False)


# tests/e2e/test_arms.py runs gloo in such a shell.
@pytest.fixture(scope="module", params=[pytest.param("gloo", marks=pytest.mark.faults), "mpi"])
def contradicted(request, carry_out):
    """Run Horovod in a shell set up for the other controller."""
    controller = request.param
    other = {"gloo": "mpi", "mpi": "gloo"}[controller]
    arm = f"horovod:controller={controller}"
    with pytest.MonkeyPatch.context() as shell:
        shell.setenv("HOROVOD_FUSION_THRESHOLD", "0")
        shell.setenv("HOROVOD_CYCLE_TIME", ".5e1")  # five, as strtof reads it
        shell.setenv("HOROVOD_AUTOTUNE", "true")  # off, as strtol reads it
        shell.setenv("HOROVOD_CONTROLLER", other)
        shell.setenv("HOROVOD_CPU_OPERATIONS", other)
        shell.setenv("HOROVOD_RANK", "7")
        return arm, carry_out(launch_of("horovodrun", arm), 2)


def test_horovod_attests_its_controller_and_the_settings_that_it_took(contradicted):
    arm, outcome = contradicted
    for rank in outcome.replicas(arm):
        facts = rank.group_attestation
        assert facts["controller"] == parse_arm(arm).options["controller"]
        assert (facts["fusion_bytes"], facts["autotune"]) == (0, False)
        assert facts["cycle_milliseconds"] == CYCLE_MILLISECONDS
        assert facts["observed_cycle_milliseconds"] >= 0.8 * CYCLE_MILLISECONDS


@pytest.mark.parametrize("promise", promises.OF_A_REPLICA, ids=lambda promise: promise.__name__)
def test_horovod_keeps_the_promise_in_a_contradicting_environment(contradicted, promise):
    arm, outcome = contradicted
    promise(outcome.replicas(arm))


def test_horovod_refuses_another_rank_and_another_controller(contradicted):
    _, outcome = contradicted
    for rank in outcome.ranks:
        assert set(rank.refusals) == {"another rank", "another controller"}
        assert rank.refusals["another rank"].startswith("BackendError: Horovod has rank")
        assert rank.refusals["another controller"].startswith("BackendError: the arm needs the")


def test_mpi_attests_the_transport_that_the_environment_leaves_it(carry_out):
    arm = "mpi:mode=flat"
    with pytest.MonkeyPatch.context() as shell:
        shell.setenv("OMPI_MCA_btl", "self,tcp")  # no shared memory
        outcome = carry_out(launch_of("mpirun", arm), 2)
    for rank in outcome.replicas(arm):
        assert rank.group_attestation["transport"] == "TCP over lo"
    for rank in outcome.ranks:
        assert set(rank.refusals) == {"another rank", "a GPU", "another library"}
        assert rank.refusals["another library"].startswith("BackendError: the arm needs MPICH, but mpi4py")
        assert rank.refusals["another rank"].startswith("BackendError: MPI has rank")
        assert rank.refusals["a GPU"].startswith("BackendError: mpi averages tensors in host memory")
    for promise in promises.OF_A_REPLICA:
        promise(outcome.replicas(arm))
