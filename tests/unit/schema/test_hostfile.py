"""Hostfiles: every form in use, and every mistake with its line."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compare.errors import UsageError
from compare.schema.hostfile import (
    MAX_FILE_BYTES,
    MAX_HOSTS,
    format_hostfile,
    format_hosts,
    names_any,
    parse_hostfile,
    parse_hosts,
    read_hostfile,
    select,
)
from compare.schema.hostfile_forms import may_be_a_port
from compare.schema.hosts import MAX_SLOTS, Host

# Nothing here is about time, and a busy machine is no failure.
untimed = settings(deadline=None)

EXAMPLES = Path(__file__).parents[3] / "hostfiles"


def anywhere(hosts):
    """Hosts without the line they came from."""
    return tuple(msgspec.structs.replace(host, source="") for host in hosts)


def parsed(text):
    return [(host.name, host.slots) for host in parse_hostfile(text, "hosts")]


def mistake(text):
    with pytest.raises(UsageError) as caught:
        parse_hostfile(text, "hosts")
    return caught.value


FOUR_SLOTS = (
    *("node1 slots=4", "node1 slots = 4", "node1\tslots=4\t", "  node1   slots=4  # four GPUs", "node1:4"),
    *("node1 slots=4#four GPUs", "node1 slots=4\r", "\ufeffnode1 slots=4", "node1 4", "node1 slots=04"),
    *("node1\nnode1\nnode1\nnode1", "node1\r\n\r\nnode1\rnode1\n# a comment\nnode1"),
)


@pytest.mark.parametrize("line", FOUR_SLOTS)
def test_hostfile_forms_of_four_slots_read_alike(line):
    assert parsed(line) == [("node1", 4)]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("node1", Host("node1", 1)),
        ("node1 max-slots=8 slots=4", Host("node1", 4)),
        ("node1:4 max_slots=8", Host("node1", 4)),
        ("node1 4 max_slots=8", Host("node1", 4)),
        ("node1 max_slots=8", Host("node1", 8)),
        ("[::1]", Host("::1", 1)),
        ("fe80::1:2", Host("fe80::1:2", 1)),
        ("alice@[fe80::1] slots=4", Host("fe80::1", 4, "alice")),
        ("0:0:0:0:0:0:0:1 slots=4", Host("::1", 4)),
    ],
)
def test_hostfile_forms_of_one_host_are_read(line, expected):
    assert anywhere(parse_hostfile(line, "hosts")) == (expected,)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("node[1-4] slots=8", ["node1", "node2", "node3", "node4"]),
        ("node[1-4]:8", ["node1", "node2", "node3", "node4"]),
        ("node[1-2] 8", ["node1", "node2"]),
        ("node[3,1-2] slots=8", ["node3", "node1", "node2"]),
        ("node[08-11] slots=8", ["node08", "node09", "node10", "node11"]),
        ("node[0-6/2] slots=8", ["node0", "node2", "node4", "node6"]),
        ("node[1-2]-ib.example.com slots=8", ["node1-ib.example.com", "node2-ib.example.com"]),
        ("r[1-2]n[1-2] slots=8", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("10.0.0.[1-2] slots=8", ["10.0.0.1", "10.0.0.2"]),
        ("alice@node[1-2] slots=8", ["node1", "node2"]),
    ],
)
def test_hostfile_ranges_expand_in_the_order_written(line, names):
    hosts = parse_hostfile(line, "hosts")
    assert [host.name for host in hosts] == names
    assert {host.slots for host in hosts} == {8}
    assert {host.user for host in hosts} == {"alice" if "@" in line else ""}


def test_hostfile_bare_repeats_add_slots_to_the_first():
    assert parsed("a\nb\na\nb\nc\na\n") == [("a", 3), ("b", 2), ("c", 1)]
    assert parsed("node[1-2]\nnode2") == [("node1", 1), ("node2", 2)]


def test_hostfile_hosts_keep_their_line():
    hosts = parse_hostfile("# head\n\na slots=2\nb[1-2]\n", "my/hosts")
    assert [host.source for host in hosts] == ["my/hosts:3", "my/hosts:4", "my/hosts:4"]


MISTAKES = {
    "slots=0": ["node1 slots=0", "node1:0"],
    "'-1'": ["node1 slots=-1"],
    "'+1'": ["node1 slots=+1"],
    "'two'": ["node1 slots=two"],
    "'2.0'": ["node1 slots=2.0"],
    "u0663": ["node1 slots=٣"],
    "''": ["node1 slots=", ":4", "alice@"],
    "'slots'": ["node1 slots"],
    "slots=65537": ["node1 slots=65537"],
    "is not a number of slots": ["node1 slots=1" + "0" * 5000],
    "a second time": ["node1 slots=2 slots=2", "node1:2 slots=2", "node1 2 slots=2"],
    "'x'": ["node1:x"],
    "neither host:N nor an IPv6 address": ["node1:2:3"],
    "max_slots": ["node1 slots=4 max_slots=x"],
    "'gpus'": ["node1 gpus=4"],
    "'fast'": ["node1 slots=4 fast"],
    "'slots=4'": ["slots=4", "slots = 4"],
    "is a key": ["slots 4"],
    "no user": ["@node1", "@all[1-2] slots=4"],
    "'-oProxyCommand=x'": ["-oProxyCommand=x slots=4"],
    "'-l'": ["-l slots=4"],
    "is not a user name": ["-l@node1"],
    "'$HOME'": ["$HOME slots=4"],
    "'`id`'": ["`id` slots=4"],
    "is not a host name": ["n" * 300],
    "is an empty host name": ["a,,b"],
    "'nod\\u04351'": ["nod\N{CYRILLIC SMALL LETTER IE}1 slots=4"],
    "x1b": ["node1\x1b[2J slots=4"],
    "neither a host name nor an IPv4 address": ["4", "10.0.1 slots=4", "10.0.0.256 slots=4"],
    "nor an IPv6 address": ["[fe80::x]:4"],
    "has a zone": ["fe80::1%eth0 slots=4"],
    "is not a range": [
        *("[::1]x:4", "node[1-4 slots=4", "node1-4] slots=4", "node[] slots=4", "node[a-b] slots=4"),
        *("node[1-2][ slots=4", "node[1-2]!node[1] slots=4", "-n[1-2] slots=4", "node[4-1] slots=4"),
        *("node[1-010] slots=4", "node[1-4/0] slots=4", "node[1-" + "9" * 5000 + "]"),
    ],
    "a host twice": ["node[1,1] slots=4", "node[1,11][1,11] slots=4"],
    "100,000,000 hosts": ["node[1-100000000] slots=4"],
    "1,000,000 hosts": ["r[1-1000]n[1-1000] slots=4"],
    "hosts: the limit is": ["n" + "[1-9999]" * 20],
    "before, at hosts:2": [
        *("node1 slots=4\nnode1 slots=4", "node1 slots=4\nNODE1 slots=4", "node1\nnode1 slots=4"),
        *("node1 slots=4\nnode1", "node1 max_slots=4\nnode1", "::1 slots=4\n[0::1]:4"),
        *("node[1-4] slots=4\nnode3 slots=2",),
    ],
    "names another user than hosts:2, which has 'alice@node1'": ["alice@node1\nbob@node1"],
}


@pytest.mark.parametrize(("line", "found"), [(line, f) for f, lines in MISTAKES.items() for line in lines])
def test_hostfile_mistakes_name_their_line(line, found):
    error = mistake(f"# hosts\n{line}\n")
    number = 2 + line.count("\n")
    assert error.what.startswith(f"hosts:{number}: ")
    assert found in error.what
    assert len(error.what) < 400
    assert "slots=N" in error.remedy
    assert error.found.isprintable()


def test_hostfile_mistake_shows_the_line_as_written():
    assert mistake("a slots=2\nb  slots=none # later").found == "b  slots=none"
    for text in ("", "\n\n", "# nothing yet\n", "\ufeff", " \t\r\n"):
        assert mistake(text).what == "hosts:1: no host is named"


def test_hostfile_with_too_many_hosts_or_slots_is_refused():
    lines = [f"n{number}" for number in range(MAX_HOSTS + 1)]
    assert len(parsed("\n".join(lines[:-1]))) == MAX_HOSTS
    assert mistake("\n".join(lines)).what.startswith(f"hosts:{MAX_HOSTS + 1}: ")
    assert mistake(f"a[1-{MAX_HOSTS}] slots=1\nb slots=1").what.startswith("hosts:2: ")
    assert mistake("a\n" * (MAX_SLOTS + 1)).what.startswith(f"hosts:{MAX_SLOTS + 1}: ")


NAMES = (
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}[a-z]", fullmatch=True)
    | st.ip_addresses(v=4).map(str)
    | st.ip_addresses(v=6).map(str)
)
USERS = st.just("") | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,10}", fullmatch=True)


@st.composite
def hosts_of(draw):
    return Host(draw(NAMES.filter(lambda name: name != "slots")), draw(st.integers(1, 64)), draw(USERS))


def lists_of(hosts):
    return st.lists(hosts, min_size=1, max_size=8, unique_by=lambda host: host.name.lower()).map(tuple)


@settings(untimed, max_examples=40)
@given(lists_of(hosts_of()))
def test_format_hostfile_reads_back_the_same(hosts):
    text = format_hostfile(hosts)
    assert anywhere(parse_hostfile(text, "hosts")) == hosts
    assert text == format_hostfile(parse_hostfile(text, "hosts"))


@settings(untimed, max_examples=40)
@given(lists_of(hosts_of()))
def test_parse_hosts_reads_every_host_of_a_list(hosts):
    names = [f"[{host.name}]" if ":" in host.name else host.name for host in hosts]
    logins = [f"{host.user}@" if host.user else "" for host in hosts]
    # As many slots as a port's number need a word.
    joints = [" slots=" if may_be_a_port(str(h.slots)) else ":" for h in hosts]
    parts = zip(logins, names, joints, hosts, strict=True)
    spec = [f"{login}{name}{joint}{h.slots}" for login, name, joint, h in parts]
    assert anywhere(parse_hosts(",".join(spec))) == hosts
    assert anywhere(parse_hosts(*shlex.split(format_hosts(hosts)))) == hosts


WORDS = st.sampled_from(
    ["node1", "node[1-4]", "[::1]:2", "alice@", "slots=", "slots=2", "max_slots=", *"4 \n#,:"]
)


@pytest.mark.parametrize(
    ("source", "parse"), [("hosts", lambda text: parse_hostfile(text, "hosts")), ("-H", parse_hosts)]
)
@untimed
@given(text=st.text() | st.lists(WORDS, max_size=20).map("".join))
@example(text="node[1-4")
@example(text="node[1--4]")
@example(text="a[1]b[")
def test_any_text_gives_hosts_or_the_place_of_a_mistake(source, parse, text):
    try:
        hosts = parse(text)
    except UsageError as error:
        assert re.match(rf"{source}:[0-9]+: ", error.what)  # noqa: PT017 -- most texts are wrong, not all
        assert error.remedy  # noqa: PT017
    else:
        assert hosts
        assert all(host.slots >= 1 for host in hosts)
        assert anywhere(parse_hostfile(format_hostfile(hosts), "hosts")) == anywhere(hosts)


@pytest.mark.parametrize(
    ("spec", "place_of_mistake"),
    [
        *((spec, 1) for spec in ("", ",", "a b", "n[1,2", "a#b", "a\nb")),
        *((spec, 2) for spec in ("a:2,", "a:2,,b:2", "a:2,b:0", "a:2,a:2", "a:2,-x:1")),
    ],
)
def test_parse_hosts_mistakes_name_their_place(spec, place_of_mistake):
    with pytest.raises(UsageError, match=rf"^-H:{place_of_mistake}: ") as caught:
        parse_hosts(spec)
    assert "host:N,host:N" in caught.value.remedy or "slots=N" in caught.value.remedy


@pytest.mark.parametrize("codec", ["utf-16", "utf-8-sig", "ascii"])
def test_read_hostfile_takes_an_encoding_that_the_file_states_and_crlf(tmp_path, codec):
    path = tmp_path / "hosts"
    path.write_text("a slots=2\r\nb slots=2\r\n", encoding=codec, newline="")
    assert read_hostfile(path) == (Host("a", 2, source=f"{path}:1"), Host("b", 2, source=f"{path}:2"))
    assert read_hostfile(str(path)) == read_hostfile(path)


def test_read_hostfile_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="missing: the hostfile cannot be read") as caught:
        read_hostfile(tmp_path / "missing")
    assert caught.value.found == "No such file or directory"
    assert "--hostfile" in caught.value.remedy
    with pytest.raises(UsageError, match="cannot be read"):
        read_hostfile(tmp_path)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"# later\n", "hosts:1: no host is named"),
        (b"a slots=2\n\xff\xfe", "hosts:2: this is not UTF-8 text"),
        ("a slots=2\n".encode("utf-16-le"), "hosts:1: "),
        (b"a slots=2\nb slots=0\n", "hosts:2: 'slots=0'"),
        (b"#" * (MAX_FILE_BYTES + 1), "hosts: this is not a hostfile"),
    ],
    ids=["comments", "binary", "bytes of zero", "mistake", "huge"],
)
def test_read_hostfile_of_other_content_is_an_error(tmp_path, content, what):
    (tmp_path / "hosts").write_bytes(content)
    with pytest.raises(UsageError, match=what):
        read_hostfile(tmp_path / "hosts")


FOUR = parse_hosts("node[1-4]:2")


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("node3,node1", "node1 node3"),
        ("node[2-3]", "node2 node3"),
        ("node[1,4], NODE2", "node1 node2 node4"),
        ("^node[1-2]", "node3 node4"),
        ("^node1,^node3", "node2 node4"),
        ("node[1-3],^node2", "node1 node3"),
    ],
)
def test_select_keeps_the_named_hosts_in_order(spec, names):
    chosen = select(FOUR, spec)
    assert " ".join(host.name for host in chosen) == names
    assert set(chosen) <= set(FOUR)


def test_select_takes_a_host_as_the_file_spells_it_and_any_ipv6_spelling():
    hosts = parse_hostfile("alice@node1 slots=2\n'node2'\n[::1]:2\n", "hosts")
    assert select(hosts, "alice@node1,'node2',[::1]") == hosts
    assert select(hosts, "^alice@node1,^[::1]:2") == hosts[1:2]
    assert select(hosts, "::1") == select(hosts, "0::1") == hosts[2:]


def test_select_gives_a_host_the_slots_that_are_named_with_it():
    assert [(host.name, host.slots) for host in select(FOUR, "node1:1,node2")] == [("node1", 1), ("node2", 2)]


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ("node1,node[3-5]", "-H:2: 'node5' is none of the hosts: node1:2,node2:2,node3:2"),
        ("^node5", "-H:1: 'node5' is none of the hosts"),
        ("^node[1-4]", "-H: no host is left"),
        ("node1,^node1", "-H: no host is left"),
        ("^node1,node2", "-H: a host follows one with '^'"),
        ("alice@node1", "'alice@node1' is none of the hosts"),
        ("node1@node2:0,1", "this chooses slots or GPUs by their numbers, as DeepSpeed"),
        ("", "is an empty host name"),
        ("node[1-100000000]", "100,000,000 hosts"),
    ],
)
def test_select_mistakes_name_the_option(spec, what):
    with pytest.raises(UsageError) as caught:
        select(FOUR, spec)
    assert what in caught.value.what
    assert "node" in caught.value.found or not spec
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("spec", "chooses"), [("node2", True), ("^node9", True), ("mine,NODE1:3", True), ("mine:2", False)]
)
def test_names_any_tells_a_choice_from_other_hosts(spec, chooses):
    assert names_any(FOUR, spec) is chooses


def test_hostfile_examples_have_their_hosts_and_slots():
    found = {path.name: read_hostfile(path) for path in EXAMPLES.iterdir()}
    assert {name: (len(hosts), sum(host.slots for host in hosts)) for name, hosts in found.items()} == {
        "localhost": (1, 2),
        "two-machines": (2, 8),
        "uneven-slots": (3, 14),
        "ranges": (11, 52),
    }


def test_format_hostfile_writes_open_mpi_form():
    hosts = parse_hostfile("alice@a:2\nb\nb\n[::1] 4 max-slots=8\n", "hosts")
    assert format_hostfile(hosts) == "alice@a slots=2\nb slots=2\n::1 slots=4\n"
