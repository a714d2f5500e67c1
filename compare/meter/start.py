"""Switch the meter on in a process, before its script starts and before torch is imported.

Until torch's optimizers are imported, the meter does nothing. A script may set variables that torch reads, so
torch must be imported by the script itself.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from compare.meter import OUTPUT_VARIABLE, SETTINGS_VARIABLE

if TYPE_CHECKING:
    from compare.meter.session import Session
    from compare.schema.metered import MeterSettings

OPTIMIZERS = "torch.optim.optimizer"
"""The module that calls hooks around each step of any optimizer."""
COMPILER = "torch._dynamo"
"""The module that compiles Python code, and must leave the hooks as they are."""

RENDEZVOUS = "torch.distributed.rendezvous"
"""The module by which ranks find each other."""
_AGENT_PORT = "RINGSIDE_METER_AGENT_PORT"
"""The variable with the port of torchrun's store, for processes that a script starts."""
_PACKAGES = str(Path(__file__).resolve().parents[2])
_own: dict[str, ModuleType] = {}
"""Our modules, which a metered script does not see."""
_open: list[Hooks] = []
"""The hooks of a meter that is open around a loop of this process."""


def start() -> None:
    """Count the steps of optimizers from now on, if the environment switches the meter on."""
    if SETTINGS_VARIABLE in os.environ:
        hooks = Hooks(_session_of_environment)
        sys.meta_path[:0] = [_AfterImport(OPTIMIZERS, hooks.attach), _AfterImport(COMPILER, hooks.shield)]
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            os.environ.setdefault(_AGENT_PORT, os.environ.get("MASTER_PORT", ""))
            sys.meta_path.insert(0, _AfterImport(RENDEZVOUS, _refuse_ranks_of_its_own))
    _own.update(_take_out())


@contextmanager
def _own_modules() -> Iterator[None]:
    """Let the names of our packages mean ours inside. Outside they are free for the script's own modules."""
    theirs = _take_out()
    sys.modules.update(_own)
    sys.path.insert(0, _PACKAGES)
    try:
        yield
    finally:
        sys.path.remove(_PACKAGES)
        _own.update(_take_out())
        sys.modules.update(theirs)


def _take_out() -> dict[str, ModuleType]:
    """Remove all modules with the names of our packages, and return them."""
    names = [name for name in sys.modules if name.partition(".")[0] in {"backends", "compare"}]
    return {name: sys.modules.pop(name) for name in names}


def _session_of_environment() -> Session:
    """Return a session with the settings of the environment, which ends when this process exits."""
    import multiprocessing.util

    import msgspec

    with _own_modules():
        from compare.meter.session import Session
        from compare.schema.metered import MeterSettings

        settings = msgspec.json.decode(os.environ[SETTINGS_VARIABLE], type=MeterSettings)
        session, process = Session(settings, os.environ.get(OUTPUT_VARIABLE, "")), os.getpid()

    def end() -> None:
        if os.getpid() == process:  # a process that was forked from this one has no record
            session.end()

    if multiprocessing.parent_process() is None:
        atexit.register(end)
    else:  # a rank that the script forked leaves without atexit
        multiprocessing.util.Finalize(None, end, exitpriority=0)
    return session


def _refuse_ranks_of_its_own(rendezvous: Any) -> None:
    """End ranks that the script starts itself under torchrun, which would wait for a store for ever.

    torchrun tells all processes below it that its agent has the store, so none of them opens one at a port of
    the script's own.
    """
    create = rendezvous._create_c10d_store  # noqa: SLF001 -- all ways to a store of TCP lead through it

    @functools.wraps(create)
    def create_store(hostname: str, port: int, *arguments: Any, **named: Any) -> Any:
        if str(port) != os.environ[_AGENT_PORT]:
            with _own_modules():
                from compare.meter.refuse import refuse_ranks_of_its_own

                refuse_ranks_of_its_own()
        return create(hostname, port, *arguments, **named)

    rendezvous._create_c10d_store = create_store  # noqa: SLF001


@contextmanager
def metering(settings: MeterSettings, folder: str) -> Iterator[Hooks]:
    """Measure the steps that are taken inside; the session ends and the hooks go at the end.

    Raises:
        UsageError: this process is metered already.
    """
    import torch.optim.optimizer as optimizers

    from compare.errors import UsageError
    from compare.meter.session import Session

    if SETTINGS_VARIABLE in os.environ or _open:
        raise UsageError(
            "ringside.meter cannot begin, because this process is metered already.",
            found="`ringside meter` started it." if SETTINGS_VARIABLE in os.environ else "Another is open.",
            remedy="Use one of them.",
        )
    hooks = Hooks(lambda: Session(settings, folder))
    shield = _AfterImport(COMPILER, hooks.shield)
    _open.append(hooks)
    sys.meta_path.insert(0, shield)
    hooks.attach(optimizers)
    try:
        yield hooks
    finally:
        hooks.detach()
        with suppress(ValueError):  # the compiler was imported
            sys.meta_path.remove(shield)
        _open.remove(hooks)
        if hooks.session:
            hooks.session.end()


class _AfterImport(MetaPathFinder):
    """Call a function once a module has been imported, however it is found."""

    def __init__(self, name: str, call: Callable[[ModuleType], None]) -> None:
        self._name, self._call = name, call

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec that other finders have for the module, or None for other modules."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        found = (finder.find_spec(fullname, path, target) for finder in list(sys.meta_path))
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: ModuleType) -> None:
                execute(module)
                self._call(module)

            spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec


class Hooks:
    """The two hooks around each step, which are not removed within one, because a hook cannot remove itself.

    Args:
        make: returns the session, and is called at the first step.

    Attributes:
        session: what measures; None before the first step.
    """

    def __init__(self, make: Callable[[], Session]) -> None:
        self._make = make
        self.session: Session | None = None
        self._handles: list[Any] = []

    @property
    def are_attached(self) -> bool:
        """Return whether steps are counted."""
        return bool(self._handles)

    def attach(self, optimizers: Any) -> None:
        """Register the hooks with the module of optimizers."""
        for register, hook in (
            (optimizers.register_optimizer_step_pre_hook, self._before),
            (optimizers.register_optimizer_step_post_hook, self._after),
        ):
            self._handles.append(register(hook))
        if COMPILER in sys.modules:
            self.shield(sys.modules[COMPILER])

    def shield(self, compiler: Any) -> None:
        """Keep the compiler from tracing the hooks, for scripts that compile an optimizer's step."""
        for handle in self._handles:
            hooks = handle.hooks_dict_ref()
            hooks[handle.id] = compiler.disable(hooks[handle.id])

    def detach(self) -> None:
        """Remove the hooks, between two steps."""
        while self._handles:
            self._handles.pop().remove()

    def _before(self, optimizer: Any, *_: Any) -> None:
        self.session = self.session or self._make()
        self.session.before_step(optimizer)

    def _after(self, optimizer: Any, *_: Any) -> None:
        if self.session:
            self.session.after_step(optimizer)
