"""Known defects and settings stand beside the failures that they may cause."""

import pytest

from compare.errors import LaunchError, StalledError
from compare.launch.circumstances import Circumstances, Defect
from compare.schema.arms import parse_arm

DIED = ("ddp, round 1: rank 1 on vm died.", "It was killed by SIGBUS (Bus error).")
STALLED = ("ddp, round 1: rank 1 on vm made no progress for 30 s.", "Last seen at stage 'join'.")
KILLED = ("ddp, round 1: rank 1 on vm died.", "It was killed by SIGKILL (kill -9, or out of memory).")
SMALL = ("disk", "Shared memory is small. /dev/shm: 2.0 MB free.")
LOOPBACK = ("hostname", "The host's own name resolves to its loopback.")
CROWDED = ("slots", "The host has more slots than cores.")
REFUSED = ("memory", "Ranks may not read each other's memory.")
UNLIKE = ("alike", "The number of cores differs.")


def beside(arm, failure=DIED, *, defects=(), settings=None, trained=False):
    what, found = failure
    kind = StalledError if failure is STALLED else LaunchError
    known = [Defect(topic, "n1", text, f"Mend the {topic}.") for topic, text in defects]
    circumstances = Circumstances(parse_arm(arm), settings or {}, lambda: known)
    return circumstances.beside(kind(what, found=found, remedy="Read the log."), trained=trained)


@pytest.mark.parametrize(
    ("arm", "failure", "trained", "defect"),
    [
        ("ddp", DIED, True, SMALL),
        ("ddp", DIED, False, LOOPBACK),
        ("horovod", STALLED, False, LOOPBACK),
        ("ddp", STALLED, True, CROWDED),
        ("mpi", DIED, True, REFUSED),
        ("mpi:library=mpich", DIED, False, REFUSED),
        ("horovod:controller=mpi", DIED, False, REFUSED),
    ],
)
def test_defect_stands_with_its_fix_beside_what_it_may_cause(arm, failure, trained, defect):
    error = beside(arm, failure, defects=[defect], trained=trained)
    assert error.found == f"{failure[1]}\nThe check of n1 found: {defect[1]}"
    assert error.remedy == f"Read the log.\nMend the {defect[0]}."


@pytest.mark.parametrize(
    ("arm", "failure", "trained", "defect"),
    [
        ("ddp", KILLED, False, SMALL),
        ("ddp", DIED, True, LOOPBACK),  # it had met the others
        ("none", DIED, False, LOOPBACK),  # it meets none
        ("ddp", DIED, True, CROWDED),
        ("ddp", DIED, False, REFUSED),
        ("horovod", DIED, False, REFUSED),
        ("ddp", DIED, False, UNLIKE),
    ],
)
def test_defect_is_not_named_beside_what_it_cannot_cause(arm, failure, trained, defect):
    error = beside(arm, failure, defects=[defect], trained=trained)
    assert (error.found, error.remedy) == (failure[1], "Read the log.")


@pytest.mark.parametrize(
    ("arm", "name", "value"),
    [
        ("mpi", "OMPI_MCA_btl", "nonsense"),
        ("horovod:controller=mpi", "OMPI_MCA_btl", "nonsense"),
        ("horovod", "HOROVOD_TIMELINE", "/nowhere/t.json"),
        ("ddp", "TORCH_DISTRIBUTED_DEBUG", "DETAIL"),
        ("ddp", "TORCH_LOGS", "+distributed"),
        ("mpi:library=mpich", "MPIR_CVAR_CH4_CMA_ENABLE", "1"),
        ("none", "MALLOC_ARENA_MAX", "1"),
    ],
)
def test_setting_stands_beside_the_failure_of_an_arm_that_reads_it(arm, name, value):
    error = beside(arm, settings={name: value})
    assert f"From your shell it has: {name}={value}." in error.found
    assert error.remedy.endswith(f"If that may be the reason, try again after: unset {name}")


@pytest.mark.parametrize(
    ("arm", "name", "value"),
    [
        ("ddp", "OMPI_MCA_btl", "nonsense"),
        ("mpi:library=mpich", "OMPI_MCA_btl", "nonsense"),
        ("ddp", "HOROVOD_TIMELINE", "/nowhere/t.json"),
        ("mpi", "TORCH_DISTRIBUTED_DEBUG", "DETAIL"),
        ("none", "TORCH_DISTRIBUTED_DEBUG", "DETAIL"),
        ("ddp", "LD_LIBRARY_PATH", "/opt/lib"),  # no library failed to load
    ],
)
def test_setting_that_the_arm_does_not_read_is_not_named(arm, name, value):
    assert "shell" not in str(beside(arm, settings={name: value}))


def test_path_of_libraries_is_named_where_one_did_not_load():
    failure = ("horovod, round 1: rank 0 on vm failed.", "ImportError: libmpi.so.40: cannot open shared …")
    assert (
        "LD_LIBRARY_PATH=/opt/lib"
        in beside("horovod", failure, settings={"LD_LIBRARY_PATH": "/opt/lib"}).found
    )


def test_settings_of_its_own_libraries_come_first_and_few_are_shown():
    settings = {f"MKL_{letter}": "1" for letter in "ABCDEFGH"} | {"OMPI_MCA_pml": "ob1"}
    (line,) = [line for line in beside("mpi", settings=settings).found.splitlines() if "shell" in line]
    assert line == (
        "From your shell it has: OMPI_MCA_pml=ob1, MKL_A=1, MKL_B=1, MKL_C=1, MKL_D=1, MKL_E=1, …."
    )
