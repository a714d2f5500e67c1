"""Lines about what limits the figures of a run, by what its ranks attest."""

import re

import pytest

from compare.analysis import analyse
from compare.report.origin import refused_copies, warnings
from compare.schema.hosts import Host
from compare.schema.results import MachineUse
from tests.unit.factories import a_launch, a_rank, a_run


def a_quota(number, cpus, quota, **attested):
    """Return a rank on a host with so many CPUs and such a quota."""
    use = MachineUse(wall_ns=10**9, cpus=cpus, busy_ns=0, stolen_ns=0)
    attested = {"group": {"transport": "TCP over lo"}, "core_quota": quota} | attested
    return a_rank(number, host="ab"[number], attestation=attested, machine=use)


def shown(*ranks):
    hosts = [Host("ab"[rank.rank], 1) for rank in ranks]
    run = a_run({"ddp": []}, launches=[a_launch("ddp", 1, ranks=list(ranks))], hosts=hosts)
    return list(warnings(run, analyse(run)))


@pytest.mark.parametrize(
    ("attested", "text"),
    [
        ({"nice": 19}, "^Nice 19:"),
        ({"core_quota": 0.5}, "0.5 cores of the 2"),
        ({"core_quota": 1.0}, "1 core of the 2"),
        ({"function_called_once": True}, "It was called once"),
    ],
)
def test_limit_is_named_in_one_line(attested, text):
    (line,) = shown(a_quota(0, 2, None, **attested), a_quota(1, 2, None, **attested))
    assert re.search(text, line)


def test_quota_is_held_against_the_cores_of_its_own_host():
    (line,) = shown(a_quota(0, 4, None), a_quota(1, 64, 8.0))
    assert "8 cores of the 64" in line


def test_run_without_such_limits_has_no_line():
    nothing = {"nice": 0, "warnings": [], "default_dtype": "", "function_called_once": False}
    assert shown(a_quota(0, 2, 8.0, batch={"loader_workers": 0}, **nothing), a_quota(1, 2, None)) == []


def test_what_ranks_tell_is_named_once_and_bounded():
    told = {
        "batch": {"loader_workers": 2},
        "default_dtype": "torch.float64 (train.py:3)",
        "warnings": ["first", "second", "third", "fourth", "fifth"],
    }
    assert shown(a_quota(0, 2, None, **told), a_quota(1, 2, None, **told)) == [
        "Each rank's loader has 2 workers, which are processes beside its threads.",
        "Your file sets the default dtype: torch.float64 (train.py:3).",
        *(f"A library warns in ddp: {text}." for text in ("first", "second", "third")),
        "The logs of the ranks have 2 more warnings of libraries.",
    ]


# ---- copies that a host refuses to MPI ----

REFUSED = "Operation not permitted, EPERM; a seccomp filter is active"
OPEN_MPI, MPICH = "OMPI_MCA_btl_vader_single_copy_mechanism", "MPIR_CVAR_CH4_CMA_ENABLE"


def attested(library="Open MPI v4.1.8", copy="CMA", refused=REFUSED, **environment):
    group = {"library": library, "single_copy": copy, "memory_reads_refused": refused}
    return [{"group": group, "environment": environment}] * 2


@pytest.mark.parametrize(
    ("ranks", "means"),
    [
        (attested(), "fail at first"),
        (attested(copy="none"), "copied twice"),
        (attested(copy="unknown"), "may fail"),
        (attested("Horovod 0.28.1"), f"{OPEN_MPI}=none"),
        (attested("MPICH 5.0.2"), f"{MPICH}=0"),
        (attested(**{OPEN_MPI: "cma"}), "fail at first"),
    ],
)
def test_refused_copies_are_named_once_with_what_refuses_them(ranks, means):
    (line,) = refused_copies({"none": [{}], "mpi": ranks})
    assert line.startswith("mpi: large messages ")
    assert REFUSED in line
    assert means in line


def test_arms_of_one_library_share_a_line_and_another_has_its_own():
    lines = refused_copies({"mpi": attested(), "horovod": attested(), "mpich": attested("MPICH 5.0.2")})
    assert [line.partition(":")[0] for line in lines] == ["mpi, horovod", "mpich"]


@pytest.mark.parametrize(
    "ranks",
    [
        attested(refused=""),
        attested(copy="XPMEM"),  # a module of the kernel, which needs no such right
        attested(copy="none", **{OPEN_MPI: "none"}),
        attested("MPICH 5.0.2", copy="none", **{MPICH: "0"}),
        [{"group": {"transport": "TCP over lo"}}],
    ],
)
def test_copies_that_nothing_refuses_have_no_line(ranks):
    assert list(refused_copies({"mpi": ranks})) == []
