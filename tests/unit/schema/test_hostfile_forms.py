"""Lists of other programs are read, or refused by their form."""

from __future__ import annotations

import pytest

from compare.errors import UsageError
from compare.schema.hostfile import parse_hostfile, parse_hosts

READ = {
    "quoted names": ("\"n1\" slots=2\n'n2':2\n", {"n1": 2, "n2": 2}),
    "quoted lines": ('"n1 slots=2"\n"n2"\n', {"n1": 2, "n2": 1}),
    "ends of lines": ("n1 slots=2,\nn2;\n", {"n1": 2, "n2": 1}),
    "tabs": ("n1\tslots=2\nn2\t\tslots=2\t# two\n", {"n1": 2, "n2": 2}),
    "commas": ("n1,n2, n1\n", {"n1": 2, "n2": 1}),
    "commas and slots": ("n1 slots=2, n2 slots=2\n", {"n1": 2, "n2": 2}),
    "Slurm's list": ("alpha,beta[001,003],gamma\n", {"alpha": 1, "beta001": 1, "beta003": 1, "gamma": 1}),
    "blanks round a colon": ("n1 : 4\nn2: 4\n", {"n1": 4, "n2": 4}),
    "Grid Engine": ("n1 4 all.q@n1 UNDEFINED\nn2 2 all.q@n2 <NULL>\n", {"n1": 4, "n2": 2}),
    "Grid Engine's queues": ("n1 4 all.q@n1 UNDEFINED\nn1 1 big.q@n1 UNDEFINED\n", {"n1": 5}),
}
"""What is certain."""


@pytest.mark.parametrize(("text", "expected"), READ.values(), ids=READ)
def test_form_with_a_certain_sense_is_read(text, expected):
    assert {host.name: host.slots for host in parse_hostfile(text, "hosts")} == expected


# What is refused: the line, the name of its form, and what to write.
REFUSED = {
    "JSON": ('{"n1": [0, 1], "n2": [0]}', "this is JSON", "slots=N"),
    "JSON, a list": ('["n1", "n2"]', "this is JSON", "slots=N"),
    "slots 4": ("n1 slots 4", "a word for slots without '='", "'n1 slots=4'"),
    "addresses": ("192.0.2.1 192.0.2.2", "a list of hosts on one line", "commas"),
    "XML": ("<hosts>", "this is XML", "slots=N"),
    "YAML": ("workers:", "this is YAML", "slots=N"),
    "YAML, items": ("- name: n1", "this is YAML", "slots=N"),
    "YAML, maps": ("n1: {slots: 4}", "this is YAML", "slots=N"),
    "Ansible": ("[workers]", "an inventory of Ansible", "names or addresses"),
    "Ansible, a host": ("n1 ansible_host=192.0.2.1", "an inventory of Ansible", "slots=N"),
    "ssh's configuration": ("Host n1", "ssh's configuration", "~/.ssh/config"),
    "host keys": ("n1 ssh-ed25519 AAAAC3Nz", "ssh's host keys", "first column"),
    "rankfile": ("rank 0=n1 slot=0:0-3", "Open MPI's rankfile", "ranks of each host"),
    "PBS's request": ("nodes=n1:ppn=24+n2:ppn=24", "a request to PBS", "$PBS_NODEFILE"),
    "exec_host": ("n1/0+n1/1+n2/0*2", "or its exec_host", "$PBS_NODEFILE"),
    "star": ("n1 slots=*", "'slots=*' leaves the number to a launcher", "number of ranks"),
    "auto": ("n1 slots=auto", "'slots=auto' leaves the number", "number of ranks"),
    "user=": ("n1:2 user=alice", "'user=' is not a key of a hostfile", "alice@n1"),
    "cpu=": ("n1 cpu=2", "'cpu' is another program's word for slots", "'slots=2'"),
    "Torque": ("n1 np=4 gpus=2", "'np' is another program's word", "'slots=4'"),
    "Slots=": ("n1 Slots=4", "'Slots' is another program's word", "'slots=4'"),
    "port=": ("n1 slots=4 port=2222", "'port=' is not a key of a hostfile", "ssh:port=2222"),
    "slots:": ("n1 slots: 4", "'slots' takes '='", "'slots=4'"),
    "relative": ("+n0", "Open MPI's relative nodes", "its name"),
    "bullets": ("- n1:2", "bullets or numbers", "Leave them out"),
    "numbers": ("1. n1", "bullets or numbers", "Leave them out"),
    "en dash": ("node[1\u20134] slots=2", "a word processor's dash", "Write '-'"),
    "typographic quotes": ("\u201cn1\u201d slots=2", "special space (U+201C)", "leave out quotation marks"),
    "no-break space": ("n1\u00a0slots=2", "special space (U+00A0)", "plain space"),
    "/etc/hosts": ("192.0.2.1 n1 n1.example", "a name with its address, as in /etc/hosts", "only 'n1'"),
    "name and address": ("n1 192.0.2.1", "a name with its address", "only 'n1'"),
    "sinfo": ("n1 1 normal* idle", "a table that a command printed", "names of the hosts"),
    "kubectl": ("NAME READY STATUS RESTARTS AGE", "a table that a command printed", "slots=N"),
    "LSF": ("n1 4 n2 4", "LSF's LSB_MCPU_HOSTS", "a line of its own"),
    "DeepSpeed": ("n1:0,1", "as DeepSpeed does", "'slots=2'"),
    "DeepSpeed's hosts": ("n1@n2:0,2", "as DeepSpeed does", "'slots=2'"),
    "GPUs": ("n1 0,1,2,3", "chooses slots or GPUs by their numbers", "count the slots"),
    "CSV": ("n1,4", "a table of columns with ',' (CSV)", "slots=N"),
    "header of CSV": ("host;slots", "a table of columns with ';' (CSV)", "slots=N"),
    "semicolons": ("n1;n2", "a list with ';' between its hosts", "commas"),
    "one number": ("n1,n2 slots=4", "several names with one number of slots", "for each host"),
    "a product": ("n1*4", "a host and its count without 'slots'", "'n1 slots=4'"),
    "Slurm's product": ("n1(x4)", "a host and its count without 'slots'", "'n1 slots=4'"),
    "assignment": ("n1=4", "a host and its count without 'slots'", "'n1 slots=4'"),
    "braces": ("n{1..4} slots=2", "a range in braces", "node[1-4]"),
    "one line": ("n1 n2 n3", "a list of hosts on one line", "commas"),
    "one line with slots": ("n1 slots=2 n2 slots=2", "a list of hosts on one line", "commas"),
    "words": ("n1 4 cpus", "a word for slots without '='", "'n1 slots=4'"),
    "port": ("192.0.2.10:22", "may mean 22 slots or a port", "'192.0.2.10 slots=22' for slots"),
    "user and port": ("root@n1:22", "may mean 22 slots or a port", "'root@n1' and --engine ssh:port=22"),
    "address of torch": ("192.0.2.1:29500", "may mean 29500 slots or a port", "slots=29500"),
}


@pytest.mark.parametrize(("line", "name", "write"), REFUSED.values(), ids=REFUSED)
def test_form_of_another_program_is_refused_by_its_name(line, name, write):
    with pytest.raises(UsageError) as caught:
        parse_hostfile(f"# hosts\n{line}\nn9 slots=2\n", "hosts")
    error = caught.value
    assert error.what.startswith("hosts:2: ")
    assert name in error.what
    assert error.found.isascii()
    assert error.found[-2:] == line[-2:]
    assert write in error.remedy


def test_hosts_of_the_command_line_are_refused_by_their_form():
    with pytest.raises(UsageError, match="-H:1: these are several names with one number of slots"):
        parse_hosts("n1,n2 slots=4")
    with pytest.raises(UsageError, match="-H:2: 'n2:22' may mean 22 slots or a port"):
        parse_hosts("n1,n2:22")
    assert [host.slots for host in parse_hosts("n1 slots=22,n2:2")] == [22, 2]


def test_slots_with_their_word_may_be_any_number():
    """Only ``host:N`` asks: a node may well have 22 cores."""
    hosts = parse_hostfile("n1 slots=22\nn2 222\nn3 slots=2222\nn4:21\n", "hosts")
    assert [host.slots for host in hosts] == [22, 222, 2222, 21]
