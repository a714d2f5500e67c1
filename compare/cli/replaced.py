"""Spell out the new command line for one with commands or flags of earlier versions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from typing import NamedTuple

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
_IMPLIED = {
    "--steps": "150",
    "--optimizer": "sgd",
    "--timeout": "5m",
    "--interleave": "auto",
    "--engine": "auto",
}
"""The values of flags that are left out, to which an option is added."""
_OTHER_FLAGS = {
    *(
        "--epochs",
        "--data-dir",
        "--dataset",
        "--include",
        "--exclude",
        "--nproc-per-node",
        "--sort",
        "--config",
    ),
    *("--comparisons", "--output"),
}
"""Former flags with a value that have rules of their own; ``--output`` is one only for ``report``."""
_SWITCHES = {"--json", "--wide", "--force", "--detail"}
"""Former flags without a value; some commands still have some of them."""


class _Word(NamedTuple):
    """A flag with its value, or a word that is neither; a flag may be empty, and a value None."""

    flag: str
    value: str | None


def refuse_former(words: Sequence[str]) -> None:
    """Raise an error for a command line of earlier versions.

    Raises:
        UsageError: it has a former command or flag; the remedy is the whole new command line.
    """
    new = spell_anew(words)
    if new == list(words):
        return
    from compare.schema.environment import hide_exports

    line = shlex.join(["ringside", *hide_exports(new)])
    raise UsageError("This command line is of an earlier version.", remedy=f"It is now: {line}")


def spell_anew(words: Sequence[str]) -> list[str]:
    """Return a command line without former commands and flags; ``words`` lack the program's name."""
    if words[:1] == ["rehearse"]:
        return _without_rehearse(words[1:])
    old = next((old for old in _COMMANDS if tuple(words[: len(old)]) == old), tuple(words[:1]))
    command, *more = _COMMANDS.get(old, old) or ("",)
    read = list(_read(words[len(old) :], old[0] if old else ""))
    # Of a job, what follows is the command inside.
    if "--" in words:
        at = words.index("--")
        return [*words[: at + 1], *spell_anew(words[at + 1 :])]
    given = {word.flag: word.value or "" for word in read if word.flag}
    line = [command, *more] if command else []
    added = _added(old[0] if old else "", given)
    for flag, value in read:
        line += _spell(old[0] if old else "", flag, value, added)
    for flag, value in added.items():
        if flag not in given and value:
            line += [flag, value]
    return line


def _without_rehearse(words: Sequence[str]) -> list[str]:
    """Return the command inside ``rehearse``, with the engine that makes its hosts."""
    options: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0] != "--" and rest[0].startswith("--"):
        flag, equals, value = rest.pop(0).partition("=")
        value = value if equals or not rest else rest.pop(0)
        if flag == "--link":
            rate, comma, latency = value.partition(",")
            options |= {"rate": rate, **({"latency": latency} if comma else {})}
        else:
            options[flag.removeprefix("--")] = value
    inner = spell_anew(rest[1:] if rest[:1] == ["--"] else rest) or ["run"]
    settings = ",".join(f"{name}={value}" for name, value in options.items())
    return [*inner[:1], "--engine", f"rehearsal:{settings}" if settings else "rehearsal", *inner[1:]]


def _read(words: Sequence[str], command: str) -> Iterator[_Word]:
    """Yield the words behind a command; a flag whose value is changed is read together with it."""
    with_value = {*_SUFFIXES, *_OPTIONS, *_OTHER_FLAGS, *_IMPLIED, "--backend", "--repeats", "--format", "-H"}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-") if flag.startswith("--") else flag
        if command == "collectives" and flag == "--warmup":  # its own flag of this name
            yield _Word("", word)
        elif flag in with_value and (equals or rest):
            yield _Word(flag, value if equals else rest.pop(0))
        elif flag in _SWITCHES:
            yield _Word(flag, None)
        else:
            yield _Word("", word)


def _added(command: str, given: dict[str, str]) -> dict[str, str]:
    """Return the flags that replace several former ones, each with its whole value."""
    added: dict[str, str] = {}
    if "--epochs" in given:
        added["--steps"] = f"{given['--epochs']}epochs"
    elif "--warmup" in given and command == "run" and not {"--steps", "--workload"} & set(given):
        added["--steps"] = "1epoch"
    for old, (flag, option) in _OPTIONS.items():
        if old in given:
            value = added.get(flag) or given.get(flag) or _IMPLIED[flag]
            added[flag] = f"{value}{',' if ':' in value else ':'}{option}={given[old]}"
    data = [given["--dataset"]] if given.get("--dataset", "auto") != "auto" else []
    data += [given["--data-dir"]] if "--data-dir" in given else []
    hosts = [given["--include"]] if "--include" in given else []
    if "--exclude" in given:  # a comma in brackets belongs to a range
        hosts.append(re.sub(r"(^|,)(?![^\[]*\])", r"\1^", given["--exclude"]))
    added |= {"--data": ":folder=".join(data)} if data else {}
    added |= {"-H": ",".join(hosts)} if hosts and "-H" not in given else {}
    return added | _COMMAND_FLAGS.get(command, lambda _: {})(given)


def _flags_of_aa(given: dict[str, str]) -> dict[str, str]:
    """Return the flags of ``run`` that make an A/A test, with rounds for as many comparisons."""
    numbers = given.get("--comparisons", "10"), given.get("--repeats", "5")
    is_given = {"--comparisons", "--repeats"} & set(given) and all(map(str.isdecimal, numbers))
    repeats = {"--repeats": str(int(numbers[0]) * int(numbers[1]))} if is_given else {}
    return {"--backend": ",".join([given.get("--backend", "ddp")] * 2), **repeats}


def _flags_of_explain(given: dict[str, str]) -> dict[str, str]:
    """Return the flags of ``report`` that print a lesson, in Markdown if that was asked for."""
    in_markdown = {"--export": "-.md"} if given.get("--format") == "markdown" else {}
    return {"--format": "lesson", **in_markdown}


def _flags_of_report(given: dict[str, str]) -> dict[str, str]:
    """Return the flags of ``report`` that write a file, whose suffix says the format."""
    if "--output" not in given:
        return {}
    file, form = given["--output"], given.get("--format", "markdown")
    suffix = next((suffix for suffix, known in SUFFIXES.items() if known == form), ".md")
    return {"--export": file if file.endswith(suffix) else file + suffix, "--format": ""}


_COMMAND_FLAGS = {"aa": _flags_of_aa, "explain": _flags_of_explain, "report": _flags_of_report}


def _spell(command: str, flag: str, value: str | None, added: dict[str, str]) -> list[str]:
    """Return how one word is written now; ``added`` has the flags that replace several, or go if empty."""
    written = value or ""
    if flag in added:
        return [flag, added[flag]] if added[flag] else []
    if flag in _SUFFIXES:
        suffix = _SUFFIXES[flag]
        standard = "-" if suffix == ".json" else f"-{suffix}"
        path = written if written.endswith(suffix) else written + suffix
        return ["--export", standard if written == "-" else path]
    spelled = {
        "--nproc-per-node": ["-np", written],
        "--json": ["--format", "json"],
        "--wide": ["--detail"] if command == "report" else [],
    }
    if command == "report":
        spelled["--output"] = []
    elif command == "diff":
        spelled["--force"] = []
    elif command in {"run", "aa", "gate"}:
        spelled["--detail"] = []
    if flag in spelled:
        return spelled[flag]
    if flag in {*_OPTIONS, *_OTHER_FLAGS} - {"--output"}:
        return []
    return [*filter(None, [flag]), *([] if value is None else [value])]
