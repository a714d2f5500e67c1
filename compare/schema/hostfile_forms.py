"""Recognise the forms in which other programs write lists of hosts.

A line with only one possible meaning is changed into the form of a hostfile, and then read. For other lines,
the error names the form and states what to write instead.
"""

from __future__ import annotations

import re

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_HOST = rf"{_NAME}(?:\[[0-9,/-]+\][A-Za-z0-9._-]*)*(?::\d+)?"
_ADDRESS = r"(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f]*:[0-9A-Fa-f:]+)"
_NUMBER_OF_SLOTS = (
    "slots?|cpus?|cores?|count|np|n?procs?|ppn|ncpus|tasks?|ntasks|workers?|gpus?|num_gpus|ngpus|processes"
)
_SSH_PORTS, _FIRST_PORT, _LAST_PORT = {22, 222}, 1024, 65535
_ONE_LINE = "Put each host on a line of its own, or put commas between them."

# For each form: the pattern of a whole line, what replaces it, and whether slots of a repeated host add up.
_READABLE_FORMS = (
    # Grid Engine's $PE_HOSTFILE: host, slots, queue@host, processors. A host may have several queues.
    (re.compile(r"(\S+)[ \t]+(\d+)[ \t]+\S+@\S+(?:[ \t]+\S+)?"), r"\1 slots=\2", True),
    (re.compile(r"(.*[^,;\s])\s*[,;]"), r"\1", False),
    (re.compile(r"([\"'])([^\"']+)\1[ \t]*((?:[ \t:].*)?)"), r"\2\3", False),
    (re.compile(rf"({_NAME})[ \t]*:[ \t]*(\d+)"), r"\1:\2", False),
)


def as_hostfile_line(text: str) -> tuple[str, bool]:
    """Return a line in the form of a hostfile, and whether its slots add to earlier ones of its host.

    A line that is in no other known form is returned unchanged.
    """
    adds = False
    for pattern, replacement, form_adds in _READABLE_FORMS:
        if match := pattern.fullmatch(text):
            text, adds = match.expand(replacement), adds or form_adds
    return text, adds


_REFUSED_FORMS = (
    ("this is JSON, or a list from a program", r'^[{\[]\s*(?:$|["\'{\[])|^"[^"]*"\s*:\s|^[}\]],?$', ""),
    ("this is XML", r"^<", ""),
    ("this is YAML", r"^---$|^[\w.-]+:\s*$|^[\w.-]+:\s+[^\d\s]|^-\s+[A-Za-z_]+:\s", ""),
    (
        "this is an inventory of Ansible",
        r"^\[[A-Za-z_][\w.-]*(?::\w+)?\]$|\bansible_\w+\s*=",
        "Write its names or addresses.",
    ),
    (
        "this is ssh's configuration",
        r"^(?i:Host|HostName|User|Port|IdentityFile|ProxyJump|ProxyCommand|Match|Include)[\s=]+\S",
        "Keep it in ~/.ssh/config, which is used here too, and write only its hosts.",
    ),
    ("this is a list of ssh's host keys", r"^\S+\s+(?:ssh-|ecdsa-|sk-)\S+", "Write only its first column."),
    (
        "this is Open MPI's rankfile",
        r"^rank\s+\d+\s*=",
        "Count the ranks of each host, and write that number as its slots.",
    ),
    (
        "this is a request to PBS or Torque, or its exec_host",
        r"^(?:-l\s*)?(?:nodes|select)=|:(?:ppn|ncpus|mpiprocs)=|^[A-Za-z][\w.-]*/\d+(?:\*\d+)?(?:\+|$)",
        "Start Ringside within the job, where it reads the hosts from $PBS_NODEFILE.",
    ),
    (
        "'slots={0}' leaves the number to a launcher",
        r"(?i:slots)\s*=\s*(\*|auto|all|max)(?:\s|,|$)",
        "Write the number of ranks that the host takes.",
    ),
    (
        "'{0}=' is not a key of a hostfile",
        r"\s(user|ifhn|binding|map|netmask|ib|port)\s*=",
        "Write 'alice@n1 slots=2' for a user, and name a port with --engine ssh:port=2222.",
    ),
    (
        "'{0}' is another program's word for slots",
        rf"(?<![\w-])(?!slots\b)(?i:({_NUMBER_OF_SLOTS}))\s*=\s*([1-9]\d*)",
        "Write 'slots={1}'.",
    ),
    ("'slots' takes '=', not ':'", r"(?i:slots)\s*:\s*(\d+)", "Write 'slots={0}'."),
    (
        "this is a range in braces, as for a shell",
        r"\w\{[^{}]*(?:\.\.|,)[^{}]*\}",
        "Write 'node[1-4]' or 'node[1,3]'.",
    ),
    ("this is one of Open MPI's relative nodes", r"^\+[nNeE]\d*", "Write its name."),
    (
        "this is a list with bullets or numbers",
        r"^(?:[-*+\u2022\u00b7\u2013]|\d+[.)])\s+\S",
        "Leave them out.",
    ),
    (
        "this has a word processor's dash, quotation mark or special space ({0})",
        (
            r"([\u2010-\u2015\u2212\uff0d\u2018-\u201f\u00ab\u00bb"
            r"\u00a0\u1680\u2000-\u200d\u202f\u205f\u2060\u3000\ufeff])"
        ),
        "Write '-' or a plain space in its place, and leave out quotation marks.",
    ),
    (
        "this is a name with its address, as in /etc/hosts",
        (
            rf"^{_ADDRESS}\s+([A-Za-z][\w.-]*)(?:\s+[A-Za-z][\w.-]*)*$(?<!slots)"
            rf"|^([A-Za-z][\w.-]*)\s+{_ADDRESS}(?:\s|$)"
        ),
        "Write only '{0}', or only its address.",
    ),
    (
        "this is a table that a command printed",
        r"^\S+\s+\d+\s+\S+\s+(?:idle|mix|alloc|down|drain|comp)|^(?:NODELIST|HOSTNAMES?|NODE|NAME|PARTITION)\s+[A-Z]",
        "Keep only the names of the hosts.",
    ),
    ("this is LSF's LSB_MCPU_HOSTS", rf"^{_NAME}\s+\d+\s+[A-Za-z][\w.-]*\s+\d+", _ONE_LINE),
    (
        "this chooses slots or GPUs by their numbers, as DeepSpeed does",
        rf"^(?:{_NAME}(?::[\d,]+)?@)*{_NAME}:\d+(?:,\d+)+(?:@|$)|^{_NAME}\s+\d+(?:,\s*\d+)+$",
        "Here you only count the slots: two of them are 'slots=2'.",
    ),
    (
        "this is a table of columns with '{0}' (CSV)",
        rf"^{_NAME}\s*([,;])\s*\d+\s*(?:[,;].*)?$|^(?i:host\w*|node\w*|name|ip)\s*([,;])\s*(?i:{_NUMBER_OF_SLOTS})",
        "",
    ),
    (
        "this is a list with '{0}' between its hosts",
        r"\w\s*([;&|])\s*\w|^[A-Za-z][\w.-]*([+])[A-Za-z]",
        _ONE_LINE,
    ),
    (
        "these are several names with one number of slots",
        rf"^{_HOST}(?:\s*,\s*{_HOST})+\s+(?:max[_-])?slots\s*=",
        "Write the number for each host, so that it is clear whose slots they are.",
    ),
    (
        "this is a host and its count without 'slots'",
        rf"^(?!slots|max)({_NAME})\s*(?:[*x=]|\(x?)\s*(\d+)\)?$",
        "Write '{0} slots={1}'.",
    ),
    (
        "this has a word for slots without '='",
        rf"^({_NAME})\s+(?:(?i:{_NUMBER_OF_SLOTS})\s+(\d+)|(\d+)\s+(?i:{_NUMBER_OF_SLOTS}))$",
        "Write '{0} slots={1}'.",
    ),
    (
        "this is a list of hosts on one line",
        (
            r"slots\s*=\s*\d+\s+[A-Za-z0-9][\w.-]*\s+slots\s*="
            rf"|^(?!.*\bslots\b){_HOST}(?:\s+(?=[A-Za-z]|\d+\.\d){_HOST})+$"
        ),
        _ONE_LINE,
    ),
)
"""The forms that are refused by an error that names them.

Each has a clause that names the form, the pattern of its lines, and a sentence that states what to write, or
an empty text. ``{0}`` stands for the first matched group of the pattern.
"""


def recognise_form(line: str) -> tuple[str, str] | None:
    """Return a clause that names the form of a line, and a sentence that states what to write instead.

    The sentence may be empty. The result is None for a line of an unknown form.
    """
    for name, pattern, remedy in _REFUSED_FORMS:
        if match := re.search(pattern, line, re.ASCII):
            groups = [_code_point(group) for group in match.groups() if group is not None]
            return name.format(*groups), remedy.format(*groups)
    return None


def may_be_a_port(count: str) -> bool:
    """Return whether the number in ``host:N`` looks like a port: 22, 222, or from 1024 to 65535."""
    number = int(count) if re.fullmatch("[0-9]{1,5}", count) else 0
    return number in _SSH_PORTS or _FIRST_PORT <= number <= _LAST_PORT


def slots_or_port_remedy(name: str, count: str) -> str:
    """Return the remedy for a number after a host's name, which states how to write slots and how a port."""
    return f"Write '{name} slots={count}' for slots, or '{name}' and --engine ssh:port={count} for a port."


def _code_point(group: str) -> str:
    """Return ASCII text unchanged, and any other single character as its code point, such as U+2013."""
    return group if group.isascii() else f"U+{ord(group):04X}"
