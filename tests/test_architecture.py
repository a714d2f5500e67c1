"""Hold the sources to the rules of CONTRIBUTING.md."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

from backends import GROUPS
from backends.arms import ARMS
from compare import errors

ROOT = Path(__file__).resolve().parents[1]

# What each room may import of ours. "backends" is the registry alone, "backends.*" all of it.
MAY_IMPORT = {
    "backends": (),
    "data": ("backends.cache", "errors", "text"),
    "system": ("errors", "text"),
    "schema": ("backends", "backends.launchers.request", "data.catalogue", "data.models", "errors", "text"),
    "worker": ("schema", "data", "backends.*", "workload", "errors", "text"),
    "workload": (),
    "meter": ("schema", "errors", "text"),
    "ringside": (
        "cli",
        "experiment",
        "report",
        "analysis",
        "meter.command",
        "meter.start",
        "schema",
        "errors",
        "text",
    ),
    "launch": ("schema", "data", "backends", "backends.launchers", "errors", "text"),
    "jobs": ("schema", "errors", "text"),
    "analysis": ("schema", "backends", "errors", "text"),
    "report": ("analysis", "schema", "backends.launchers.request", "backends.code", "errors", "text"),
    "doctor": (
        "launch",
        "report.document",
        "schema",
        "data",
        "backends",
        "backends.cache",
        "backends.launchers",
        "errors",
        "text",
    ),
    "experiment": (
        "launch",
        "meter.command",
        "analysis",
        "doctor",
        "schema",
        "data",
        "backends",
        "errors",
        "text",
    ),
    "cli": (
        "experiment",
        "report",
        "doctor",
        "analysis",
        "launch",
        "jobs",
        "schema",
        "data",
        "errors",
        "text",
    ),
    "errors": (),
    "text": (),
    "__main__": ("cli", "errors"),
}
# The rooms that may not import "system", too.
ASKS_NO_MACHINE = {"backends", "data", "workload", "analysis", "errors", "text"}
# What starts a process, opens a socket, or asks the machine or its clock.
ACTING = {"os", "pathlib", "subprocess", "socket", "time", "datetime", "tempfile", "asyncio", "psutil"}
# A second or more each to import, or not there at all.
HEAVY = {"torch", "horovod", "mpi4py", "numpy", "scipy", "sklearn", "matplotlib", "pandas"}


class Import(NamedTuple):
    """One imported name, and when it is imported."""

    name: str
    when: str
    """``start`` of the module, ``later`` in a function, ``never`` for type checkers."""


def _modules():
    found = {}
    for package in ("compare", "backends", "ringside"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text())
    return found


MODULES = _modules()


def imports_of(tree):
    """Everything that a module imports, names spelled in full: ``from a import b`` is ``a.b``."""
    found = []

    def visit(node, when):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                visit(child, "never")
            for child in node.orelse:
                visit(child, when)
            return
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, when) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports are not used here"
            found.extend(Import(f"{node.module}.{alias.name}", when) for alias in node.names)
        inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            visit(child, "later" if inside and when == "start" else when)

    visit(tree, "start")
    return found


def module_of(name):
    """Return our module that defines an imported name; None for a library's."""
    while name and name not in MODULES:
        name = name.rpartition(".")[0]
    return name or None


def room_of(module):
    """Return a module's room: ``schema`` for ``compare.schema.job``."""
    package, _, rest = module.partition(".")
    return package if package in {"backends", "ringside"} else rest.partition(".")[0]


def may_import(room, module):
    """Return whether a room may import one of our modules.

    Every room may import the version and the package's folder.
    """
    inside = module.removeprefix("compare.")
    if (module == "compare" and room != "backends") or room_of(module) == room:
        return True
    if room_of(module) == "system" and room not in ASKS_NO_MACHINE:
        return True
    return any(
        inside == name
        or (name.endswith(".*") and inside.startswith(name[:-2]))
        or (name != "backends" and inside.startswith(f"{name}."))
        for name in MAY_IMPORT[room]
    )


def top(name):
    return name.partition(".")[0]


def calls_of(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def docstrings_of(tree):
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, holders) and node.body and isinstance(node.body[0], ast.Expr)
    }


def words_of(tree):
    """Return the words of all identifiers and strings, without docstrings."""
    prose = docstrings_of(tree)
    texts = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            texts.append(node.id)
        elif isinstance(node, ast.Attribute):
            texts.append(node.attr)
        elif isinstance(node, (ast.arg, ast.keyword)):
            texts.append(node.arg or "")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            texts.append(node.value)
    return {word.lower() for text in texts for word in re.split(r"[^A-Za-z0-9]+", text) if word}


def test_every_module_belongs_to_a_room():
    assert {"compare", "compare.cli.main", "backends.launchers.mpirun", "backends"} <= set(MODULES)
    assert len(MODULES) > 35
    assert {room_of(module) for module in MODULES} - {""} == set(MAY_IMPORT)


# ---- the rules of direction ----


def ours_in(module):
    """Return our modules that a module imports, also for type checkers alone."""
    return {module_of(name) for name, _ in imports_of(MODULES[module])} - {None, module}


@pytest.mark.parametrize("module", [module for module in MODULES if module != "compare"])
def test_a_room_imports_only_the_rooms_below_it(module):
    assert {other for other in ours_in(module) if not may_import(room_of(module), other)} == set()


@pytest.mark.parametrize("room", sorted(set(MAY_IMPORT) - {"errors", "text", "__main__"}))
def test_a_room_states_its_purpose_and_hands_on_its_face(room):
    module = import_module(room if room in {"backends", "ringside"} else f"compare.{room}")
    assert module.__doc__.partition("\n")[0].endswith((".", ":"))
    face = getattr(module, "__all__", ())
    assert all(getattr(module, name) is not None for name in face)
    assert bool(face) is (room not in {"worker", "meter", "cli", "launch", "jobs", "schema", "system"})


def test_only_experiment_joins_launch_with_analysis():
    joining = {m for m in MODULES if {"launch", "analysis"} <= {room_of(other) for other in ours_in(m)}}
    assert {room_of(module) for module in joining} == {"experiment"}


STARTING = {"subprocess", "multiprocessing", "psutil", "asyncio", "concurrent"}
PURE = ("compare.doctor.rules", "compare.doctor.facts", "compare.experiment.schedule", "compare.text")
LIBRARIES = {
    "the command line computes nothing": (
        lambda module: room_of(module) == "cli",
        HEAVY | {"math", "statistics", "random", "itertools", "datetime"},
    ),
    "torch stays in the ranks": (
        lambda module: room_of(module) not in {"worker", "meter", "backends", "workload"},
        {"torch", "horovod", "mpi4py"},
    ),
    "analysis and report start no process and open no socket": (
        lambda module: room_of(module) in {"analysis", "report"},
        STARTING | {"socket", "urllib", "http"},
    ),
    "launchers start nothing": (lambda module: module.startswith("backends.launchers."), STARTING),
    "what is pure asks neither the machine nor its clock": (
        lambda module: room_of(module) == "analysis" or module.startswith(PURE),
        ACTING,
    ),
}


@pytest.mark.parametrize("rule", LIBRARIES)
def test_a_room_imports_no_library_that_is_for_another(rule):
    concerns, libraries = LIBRARIES[rule]
    concerned = [module for module in MODULES if concerns(module)]
    assert len(concerned) > 4
    hints = "never" if libraries is ACTING else ""  # a type of pathlib or datetime asks nothing
    found = {
        (module, name)
        for module in concerned
        for name, when in imports_of(MODULES[module])
        if top(name) in libraries and when != hints
    }
    assert found == set()


def test_only_its_engine_and_the_command_line_know_ssh():
    """All engines have one seam; two stand in for launchers' ssh, and schedulers' hosts are reached by it."""
    known = {
        *("compare.launch.engines", "compare.launch.engines.ssh", "compare.launch.engines.slurm"),
        *("compare.launch.engines.rehearsal", "compare.launch.engines.schedulers"),
        "compare.jobs.kubernetes",
        *("compare.launch.engines.detect", "compare.experiment.allocation"),
        *("compare.cli.options", "compare.cli.replaced"),
        "compare.schema.hostfile_forms",  # ssh's own files are lists of hosts, too
    }
    assert {name for name, tree in MODULES.items() if "ssh" in words_of(tree)} == known


def test_no_files_import_each_other_in_a_circle():
    """Also in functions, and for type checkers alone: a file is read without those that use it."""
    graph = {
        module: {module_of(name) for name, _ in imports_of(tree)} - {None, module}
        for module, tree in MODULES.items()
    }
    TopologicalSorter(graph).prepare()  # it raises a CycleError that names the circle


@pytest.mark.parametrize("module", MODULES)
def test_no_room_knows_another_rooms_private_names(module):
    private = [n for n, _ in imports_of(MODULES[module]) if re.search(r"\._[a-z]", n) and module_of(n)]
    assert [name for name in private if room_of(module_of(name)) != room_of(module)] == []


@pytest.mark.parametrize("module", [name for name in MODULES if top(name) == "compare"])
def test_compare_knows_no_group_and_no_strategy(module):
    """What a backend is made of is named in the registry alone."""
    behind = ("backends.groups", "backends.strategies")
    assert not [name for name, _ in imports_of(MODULES[module]) if name.startswith(behind)]


LOADING = {"backends.load", "backends.load_group"}


def test_only_a_rank_loads_a_backend():
    callers = {
        module
        for module, tree in MODULES.items()
        if LOADING & {*(name for name, _ in imports_of(tree)), *(ast.unparse(c.func) for c in calls_of(tree))}
    }
    assert callers == {"compare.worker.rank"}


def test_the_registry_names_classes_that_there_are():
    paths = [entry.group for entry in GROUPS.values() if entry.group]
    for backend in ARMS:
        chosen = [path for option in backend.options for path in option.strategies.values()]
        paths += [backend.group, backend.strategy, *chosen]
    for path in paths:
        module, _, name = path.partition(":")
        assert name in {node.name for node in MODULES[module].body if isinstance(node, ast.ClassDef)}, path


# ---- the loop ----


def test_the_loop_knows_no_backend():
    tree = MODULES["compare.worker.loop"]
    assert not words_of(tree) & {*(arm.name for arm in ARMS), "distributed", "hvd", "nccl", "gloo"}
    assert not {ast.unparse(call.func) for call in calls_of(tree)} & {
        "isinstance",
        "type",
        "hasattr",
        "getattr",
    }
    assert not [name for name, _ in imports_of(tree) if "distributed" in name]
    assert {name for name, when in imports_of(tree) if top(name) == "backends" and when != "never"} == set()


# ---- what the parent must not wait for ----

PARENT = sorted(m for m in MODULES if top(m) == "compare" and room_of(m) not in {"worker", "meter"})


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        (["backends"], HEAVY | {"msgspec", "psutil", "rich"}),
        ([*(m for m in PARENT if not m.endswith("__main__")), "backends.base", "backends.probe"], HEAVY),
    ],
    ids=["the registry", "the parent"],
)
def test_importing_loads_no_heavy_library(modules, unwanted):
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}:\n    importlib.import_module(name)\n"
        f"print(sorted(set(sys.modules) & {unwanted!r}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


# ---- everywhere ----


@pytest.mark.parametrize("module", MODULES)
def test_a_module_is_named_after_what_it_holds(module):
    last = module.rpartition(".")[2]
    assert not re.search(
        r"(^|_)(util|utils|utility|utilities|helper|helpers|manager|managers|common|misc)(_|$)", last
    )


FORBIDDEN = re.compile(
    r"^ *(?:import|from) (?:pickle|cPickle|dill|shelve|marshal)\b|(?<![\w.])(?:eval|exec)\("
    r"|os\.(?:system|popen)\(|subprocess\.get|\bshell=(?!False)|\ballow_pickle=",
    re.MULTILINE,
)


def test_nothing_reads_text_as_a_program_or_bytes_as_objects():
    assert FORBIDDEN.search("subprocess.run('ls', shell=x)")
    found = {name: FORBIDDEN.search(ast.unparse(tree)) for name, tree in MODULES.items()}
    assert {name: match[0] for name, match in found.items() if match} == {}


NEVER_SHOWN = {"The time limit of this run has passed."}
"""What another error replaces before a user sees it."""


def test_every_error_says_what_to_do():
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type)}
    calls = [
        (module, node)
        for module, tree in MODULES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds
    ]
    assert len(calls) > 100
    without = [
        f"{module}:{call.lineno}"
        for module, call in calls
        if not {"remedy", None} & {keyword.arg for keyword in call.keywords}
        and getattr(call.args[0], "value", "") not in NEVER_SHOWN
    ]
    assert without == []


@pytest.mark.parametrize(("target", "mark"), [("timed", "timed"), ("faults", "faults"), ("hosts", "lab")])
def test_marked_tests_lie_where_make_looks_for_them(target, mark):
    """Tests of the lab have a target of their own, also those with other marks."""
    (folders,) = re.findall(rf"^test-{target}: TESTS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    files = [file.relative_to(ROOT) for file in (ROOT / "tests").rglob("*.py")]
    marked = [file for file in files if re.search(rf"pytest\.mark\.{mark}\b", (ROOT / file).read_text())]
    assert marked
    outside = [file for file in marked if not any(map(file.is_relative_to, [*folders.split(), "tests/lab"]))]
    assert outside == []
