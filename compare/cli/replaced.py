"""Spell out the new command line for one with commands or flags of earlier versions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from compare.cli.flag_options import SUFFIXES
from compare.errors import UsageError

_COMMANDS = {
    ("explain",): ("report",),
    ("history",): ("report",),
    ("diff",): ("report",),
    ("aa",): ("run",),
    ("data", "fetch"): ("setup", "data"),
    ("data", "status"): ("setup", "data", "--check"),
    ("install", "horovod"): ("setup", "horovod"),
    ("install", "mpich"): ("setup", "mpich"),
    ("install",): ("setup",),
    ("data",): ("setup",),
}
"""The words of each former command, and what is written for it; ``rehearse`` is an engine now."""
_SUFFIXES = {
    "--export-json": ".json",
    "--export-csv": ".csv",
    "--export-markdown": ".md",
    "--export-html": ".html",
    "--export-junit": ".xml",
}
"""The suffixes of ``--export FILE``, by the former flags."""
_OPTIONS = {
    "--warmup": ("--steps", "warmup"),
    "--lr": ("--optimizer", "lr"),
    "--stall": ("--timeout", "stall"),
    "--max-reruns": ("--interleave", "reruns"),
    "--ssh-user": ("--engine", "user"),
    "--ssh-port": ("--engine", "port"),
    "--ssh-identity": ("--engine", "identity"),
    "--interface": ("--engine", "interface"),
    "--wait-for-hosts": ("--engine", "wait"),
}
"""The flags and their options, ``--flag value:option=…``, by the former flags."""
_IMPLIED = {"--optimizer": "sgd", "--timeout": "5m", "--interleave": "auto", "--engine": "auto"}
"""The values of flags that are left out, to which an option is added."""
_HOSTS = {"-H", "--hosts", "--hostfile"}
_SWITCHES = {"--json", "--wide", "--force", "--detail", "--png"}
"""Former flags without a value; some commands still have some of them."""
_DROPPED = {"--epochs", "--data-dir", "--dataset", "--include", "--exclude", "--sort", "--comparisons"}
"""Further former flags with a value, which others replace, or nothing."""
_GONE_FROM = {"report": "--output", "diff": "--force"} | dict.fromkeys(("run", "aa", "gate"), "--detail")
"""The flag that each former command has lost, although another one has it still."""
_GONE = {
    "--config": "Put the settings of --config into [tool.ringside] of a pyproject.toml here, or above.",
    "--png": "Leave out --png: pictures are SVG, which a browser prints or saves as another format.",
    "clean": "Remove the folders of old runs in runs/ by hand.",
    "schema": "The JSON Schema of results.json is docs/results.schema.json.",
}
"""What to do in place of a flag or a command that nothing replaces."""


class _Word(NamedTuple):
    """A flag with its value, or a word that is neither, for which ``flag`` is empty."""

    flag: str
    value: str
    written: list[str]
    """The words of the command line."""


def refuse_former(words: Sequence[str]) -> None:
    """Raise an error for a command line of earlier versions.

    Raises:
        UsageError: it has a former command or flag; the remedy is the whole new command line, or a sentence
            where none says the same.
    """
    new = spell_anew(words)
    if new == list(words):
        return
    from compare.schema.environment import hide_exports

    raise _refusal(f"It is now: {shlex.join(['ringside', *hide_exports(new)])}")


def setting_anew(command: str, table: Mapping[str, Any], key: str) -> str:
    """Return what replaces a former key of a ``table`` of settings; empty if the key never was one."""
    if isinstance(table[key], dict):
        name_now = " ".join(_COMMANDS.get(tuple(key.split()), ())[:2])
        return f"The name of this table is now {name_now!r}." if name_now else ""
    words = command.split()
    for name, value in table.items():
        for one in value if isinstance(value, list) else [value]:
            words += [f"--{name}".replace("_", "-"), *([] if isinstance(one, bool) else [str(one)])]
    try:
        line = spell_anew(words)
    except UsageError as error:
        return error.remedy
    if f"--{key}".replace("_", "-") in line:
        return ""
    before = [word.written for word in _read(words, command)]
    new = [part for word in _read(line, command) if word.written not in before for part in word.written]
    return f"As flags it is now: {shlex.join(new)}" if new else "Leave it out."


def _refusal(remedy: str) -> UsageError:
    return UsageError("This command line is of an earlier version.", remedy=remedy)


def spell_anew(words: Sequence[str]) -> list[str]:
    """Return a command line without former commands and flags; ``words`` lack the program's name.

    Raises:
        UsageError: no new line says the same; the remedy says what to do.
    """
    if words[:1] == ["meter"]:  # no earlier version has it, and a script's own flags follow
        return list(words)
    if words[:1] == ["rehearse"]:
        return _without_rehearse(words[1:])
    if "--" in words:  # of a job, what follows is the command inside
        at = words.index("--")
        return [*spell_anew(words[:at]), "--", *spell_anew(words[at + 1 :])]
    old = next((old for old in _COMMANDS if tuple(words[: len(old)]) == old), tuple(words[:1]))
    command = old[0] if old else ""
    read = list(_read(words[len(old) :], command))
    given = {word.flag: word.value for word in read if word.flag}
    if advice := _advice(command, given):
        raise _refusal(advice)
    added = _added(command, given, read)
    line = [*_COMMANDS.get(old, old)]
    for word in read:
        line += _spell(command, word, added)
    further = {flag: value for flag, value in added.items() if value and flag not in given}
    return line + [word for pair in further.items() for word in pair]


def _without_rehearse(words: Sequence[str]) -> list[str]:
    """Return the command inside ``rehearse``, with the engine that makes its hosts."""
    options: dict[str, str] = {}
    rest = list(words)
    while rest and (match := re.fullmatch("--(hosts|slots|link)(=.*)?", rest[0])):
        value = (match[2] or "")[1:] or "".join(rest[1:2])
        del rest[: 1 if match[2] else 2]
        names = ("rate", "latency") if match[1] == "link" else (match[1],)
        options |= dict(zip(names, value.split(",", 1), strict=False))
    for prefix in (["--"], ["ringside"], ["compare"]):
        rest = rest[1:] if rest[:1] == prefix else rest
    command, *flags = spell_anew(rest if rest and not rest[0].startswith("-") else ["run", *rest])
    if {"--engine", *_HOSTS} & set(flags):
        raise _refusal("A rehearsal makes its own hosts: leave out the flags that name or reach others.")
    settings = ",".join(f"{name}={value}" for name, value in options.items())
    return [command, "--engine", f"rehearsal:{settings}" if settings else "rehearsal", *flags]


def _read(words: Sequence[str], command: str) -> Iterator[_Word]:
    """Yield the words behind a command, each flag with the word behind it if that may be its value."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-") if flag.startswith("--") else flag
        if not flag.startswith("-") or (command == "collectives" and flag == "--warmup"):
            yield _Word("", "", [word])  # the flag is its own one of this name
        elif equals or flag in _SWITCHES or not rest or (rest[0].startswith("-") and rest[0] != "-"):
            yield _Word(flag, value, [word])
        else:
            yield _Word(flag, rest[0], [word, rest.pop(0)])


def _advice(command: str, given: Mapping[str, str]) -> str:
    """Return what to do if no new command line says what the former one did; otherwise nothing."""
    flags = set(given)
    hosts, ssh = flags & _HOSTS, sorted(flag for flag in flags if flag.startswith("--ssh-"))
    if gone := next((name for name in (command, *given) if name in _GONE), ""):
        return _GONE[gone]
    if hosts - {"--hostfile"} and flags & {"--include", "--exclude"}:
        return "Name only the hosts to use with -H, without --include and --exclude."
    if "--nproc-per-node" in flags and (hosts or flags & {"-np", "--num-proc"}):
        return "Give -np the number of all ranks, without --nproc-per-node. The hosts' slots divide them."
    if ssh and given.get("--engine", "ssh" if hosts else "auto") != "ssh":
        return f"Leave out {', '.join(ssh)}, or name hosts with -H or --hostfile, which are reached by ssh."
    judging = {"--fail-if-slower", "--export-junit"} & flags or given.get("--format") == "github-benchmark"
    if command == "diff" and judging:
        return "Two runs are only described: `ringside gate --against PYTHON` judges, within one run."
    return ""


def _added(command: str, given: Mapping[str, str], read: Sequence[_Word]) -> dict[str, str]:
    """Return the flags that replace several former ones, each with its whole value."""

    def joined(flag: str) -> str:
        return ",".join(word.value for word in read if word.flag == flag)

    added: dict[str, str] = {}
    if "--steps" not in given and ({"--epochs", "--warmup"} & set(given) or command == "aa"):
        epochs = f"{given.get('--epochs', 1)}epochs".replace("1epochs", "1epoch")
        added["--steps"] = "150" if command != "run" else "200" if "--workload" in given else epochs
    for old, (flag, option) in _OPTIONS.items():
        if old in given:
            value = added.get(flag) or given.get(flag) or _IMPLIED[flag]
            added[flag] = f"{value}{',' if ':' in value else ':'}{option}={given[old]}"
    data = [given["--dataset"]] if given.get("--dataset", "auto") != "auto" else []
    data += [given["--data-dir"]] if "--data-dir" in given else []
    # A comma in brackets belongs to a range.
    left_out = re.sub(r"(^|,)(?![^\[]*\])", r"\1^", joined("--exclude")) if "--exclude" in given else ""
    hosts = [*filter(None, (joined("--include"), left_out))]
    added |= {"--data": ":folder=".join(data)} if data else {}
    added |= {"-H": ",".join(hosts)} if hosts else {}
    return added | _implied(command, given)


def _implied(command: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the flags that a former command implies, or the file of a report with its suffix."""
    form = given.get("--format", "markdown")
    if command == "aa":  # its rounds were those of each comparison
        numbers = given.get("--comparisons", "10"), given.get("--repeats", "5")
        is_given = {"--comparisons", "--repeats"} & set(given) and all(map(str.isdecimal, numbers))
        repeats = {"--repeats": str(int(numbers[0]) * int(numbers[1]))} if is_given else {}
        return {"--backend": ",".join([given.get("--backend", "ddp")] * 2), **repeats}
    if command == "explain":
        in_markdown = {"--export": "-.md"} if "--format" in given and form == "markdown" else {}
        return {"--format": "lesson", **in_markdown}
    if command == "report" and (file := given.get("--output")):
        suffix = next((suffix for suffix, known in SUFFIXES.items() if known == form), ".md")
        return {"--export": file.removesuffix(suffix) + suffix, "--format": ""}
    return {}


def _spell(command: str, word: _Word, added: Mapping[str, str]) -> list[str]:
    """Return how one word is written now; ``added`` has the flags that replace several, or go if empty."""
    flag, value, written = word
    if flag in added:
        return [flag, added[flag]] if added[flag] else []
    if suffix := _SUFFIXES.get(flag):
        path = "-" if (value, suffix) == ("-", ".json") else value.removesuffix(suffix) + suffix
        return ["--export", path]
    if flag == "--nproc-per-node":
        return ["-np", value]
    if flag == "--json":
        return ["--export", "-"] if command in {"run", "aa", "verify"} else ["--format", "json"]
    if flag == "--wide":
        return ["--detail"] if command == "report" else []
    is_gone = flag in {*_OPTIONS, *_DROPPED} or flag == _GONE_FROM.get(command)
    return [] if is_gone else written
