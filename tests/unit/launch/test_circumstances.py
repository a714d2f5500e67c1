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
    return circumstances.explain(kind(what, found=found, remedy="Read the log."), trained=trained)


@pytest.mark.parametrize(
    ("arm", "failure", "trained", "defect", "named"),
    [
        ("ddp", DIED, True, SMALL, True),
        ("ddp", DIED, False, LOOPBACK, True),
        ("horovod", STALLED, False, LOOPBACK, True),
        ("ddp", STALLED, True, CROWDED, True),
        ("mpi", DIED, True, REFUSED, True),
        ("mpi:library=mpich", DIED, False, REFUSED, True),
        ("horovod:controller=mpi", DIED, False, REFUSED, True),
        ("ddp", KILLED, False, SMALL, False),
        ("ddp", DIED, True, LOOPBACK, False),  # it had met the others
        ("none", DIED, False, LOOPBACK, False),  # it meets none
        ("ddp", DIED, True, CROWDED, False),
        ("ddp", DIED, False, REFUSED, False),
        ("horovod", DIED, False, REFUSED, False),
        ("ddp", DIED, False, UNLIKE, False),
    ],
)
def test_defect_stands_with_its_fix_beside_what_it_may_cause_alone(arm, failure, trained, defect, named):
    error = beside(arm, failure, defects=[defect], trained=trained)
    topic, text = defect
    assert error.found == failure[1] + (f"\nThe check of n1 found: {text}" if named else "")
    assert error.remedy == "Read the log." + (f"\nMend the {topic}." if named else "")


@pytest.mark.parametrize(
    ("arm", "name", "value", "read"),
    [
        ("mpi", "OMPI_MCA_btl", "nonsense", True),
        ("horovod:controller=mpi", "OMPI_MCA_btl", "nonsense", True),
        ("horovod", "HOROVOD_TIMELINE", "/nowhere/t.json", True),
        ("ddp", "TORCH_DISTRIBUTED_DEBUG", "DETAIL", True),
        ("ddp", "TORCH_LOGS", "+distributed", True),
        ("mpi:library=mpich", "MPIR_CVAR_CH4_CMA_ENABLE", "1", True),
        ("none", "MALLOC_ARENA_MAX", "1", True),
        ("ddp", "OMPI_MCA_btl", "nonsense", False),
        ("mpi:library=mpich", "OMPI_MCA_btl", "nonsense", False),
        ("ddp", "HOROVOD_TIMELINE", "/nowhere/t.json", False),
        ("mpi", "TORCH_DISTRIBUTED_DEBUG", "DETAIL", False),
        ("none", "TORCH_DISTRIBUTED_DEBUG", "DETAIL", False),
        ("ddp", "LD_LIBRARY_PATH", "/opt/lib", False),  # no library failed to load
    ],
)
def test_setting_stands_beside_the_failure_of_an_arm_that_reads_it(arm, name, value, read):
    error = beside(arm, settings={name: value})
    assert ("shell" in str(error)) is read
    assert (f"It inherited from your shell: {name}={value}." in error.found) is read
    assert error.remedy.endswith(f"If that may be the reason, try again after: unset {name}") is read


def test_path_of_libraries_is_named_where_one_did_not_load():
    failure = ("horovod, round 1: rank 0 on vm failed.", "ImportError: libmpi.so.40: cannot open shared …")
    found = beside("horovod", failure, settings={"LD_LIBRARY_PATH": "/opt/lib"}).found
    assert "LD_LIBRARY_PATH=/opt/lib" in found


def test_settings_of_its_own_libraries_come_first_and_few_are_shown():
    settings = {f"MKL_{letter}": "1" for letter in "ABCDEFGH"} | {"OMPI_MCA_pml": "ob1"}
    (line,) = [line for line in beside("mpi", settings=settings).found.splitlines() if "shell" in line]
    shown = "OMPI_MCA_pml=ob1, MKL_A=1, MKL_B=1, MKL_C=1, MKL_D=1, MKL_E=1, …."
    assert line == f"It inherited from your shell: {shown}"
