"""Test the lines about an MPI that is refused its copies."""

import pytest

from compare.report.copies import refused_copies

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
        [{"group": "a text"}, {}],
    ],
)
def test_copies_that_nothing_refuses_have_no_line(ranks):
    assert refused_copies({"mpi": ranks}) == []
