"""Define the plan of a run, which a dry run shows."""

from __future__ import annotations

import msgspec

from backends.launchers.request import Command
from compare.schema.job import LaunchJob
from compare.schema.results import Run


class LaunchPlan(msgspec.Struct, frozen=True):
    """The job of a launch, and the commands that start it."""

    job: LaunchJob
    """The job that every rank reads."""
    commands: list[Command]
    """One command for each host if the launcher runs on all of them, as torchrun does; otherwise one."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would do, made without asking other hosts or launching an arm."""

    run: Run
    """The record of the run, without any launch."""
    hosts_source: str
    """Where the hosts come from, as a phrase."""
    launches: list[LaunchPlan]
    """The launches of the first round, in the order in which they would start."""
    assumptions: list[str]
    """Sentences on what is assumed of hosts that were not asked; empty if this machine is the only host."""
