"""Plan the contract suite: every arm of the registry in few launches.

A launch costs seconds, mostly for ``import torch``, so arms share launches where possible. Each launch joins
each of its groups once, and trains one replica after another in it.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import msgspec

from backends import BACKENDS, Backend, Option
from compare.schema.arms import Arm, parse_arm

WORLDS = (1, 2, 3, 4)

SMALL_BUCKETS = (
    "ddp:bucket_cap_mb=0.01",
    "manual:mode=overlap:bucket_mb=0.01",
    "horovod:mode=overlap:bucket_mb=0.01",
    "mpi:mode=overlap:bucket_mb=0.01",
)
"""Arms with small buckets: the default buckets hold the whole test model."""

EARLY = (
    "ddp:comm_hook=powersgd:powersgd_start=2",
    "localsgd:period=1",
    "localsgd:period=5:outer=nesterov",
)
"""Arms that compress or average earlier, so that twelve steps show it."""

OF_SHARDS = ("fsdp:replicate=2", "fsdp:prefetch=2")
"""Arms with a number of shards or units that is not the default."""

NOT_VARIED = {
    "process_group": "auto means gloo on the CPU, where these tests run; nccl needs a GPU for each rank",
}
"""Choices that stay at their default, each with its reason."""

SETTLED_BY_THE_LAUNCH = ("controller", "process_group", "library")
"""Options of launcher or group; arms that differ cannot share launches."""


class Member(msgspec.Struct, frozen=True):
    """One replica that is checked."""

    arm: str
    strategy: str = ""
    """A class of broken.py instead of the arm's own strategy."""

    @property
    def name(self) -> str:
        return self.strategy or self.arm


class Meeting(msgspec.Struct, frozen=True):
    """One group, joined once, and the replicas that train in it."""

    arm: str
    """The arm whose group is joined; the members have the same group."""
    members: tuple[Member, ...]
    broken_groups: tuple[str, ...] = ()
    """Classes of broken.py that are checked as if they were this group."""

    @property
    def name(self) -> str:
        arm = parse_arm(self.arm)
        alone = ["one process"] if arm.traits.one_process else []
        return ":".join([BACKENDS[arm.backend].group.rpartition(":")[2], *_settled(arm), *alone])


class Launch(msgspec.Struct, frozen=True):
    """One start of a launcher."""

    launcher: str
    meetings: tuple[Meeting, ...]
    world: int = 1
    """Number of ranks whose batches make the global batch."""
    refusals: bool = False
    """Whether the ranks also try to join in ways that must fail."""
    group_checks: bool = True
    """Whether the groups are checked as well as the replicas."""

    def among(self, world: int) -> Launch:
        """Return the launch with so many ranks, and without the arms that cannot divide them."""
        meetings = (
            msgspec.structs.replace(
                meeting, members=tuple(member for member in meeting.members if divides(member.arm, world))
            )
            for meeting in self.meetings
        )
        return msgspec.structs.replace(self, world=world, meetings=tuple(meetings))

    @property
    def processes(self) -> int:
        """Number of processes: one for an arm of one process."""
        return 1 if parse_arm(self.meetings[0].arm).traits.one_process else self.world

    @property
    def options(self) -> dict[str, Any]:
        """Options that the launcher reads."""
        return parse_arm(self.meetings[-1].arm).options


def divides(label: str, world: int) -> bool:
    """Return whether an arm can divide the ranks, as it must if its model has replicas."""
    return not parse_arm(label).cannot_divide(world)


def arms_of(backend: Backend) -> list[str]:
    """List every choice and switch of a backend, one at a time."""
    varied = [option for option in backend.options if option.name not in NOT_VARIED]
    settings = [f"{option.name}={value}" for option in varied for value in _values(option)]
    chosen = any(option.kind == "choice" for option in varied)
    labels = [*([] if chosen else [backend.name]), *(f"{backend.name}:{setting}" for setting in settings)]
    arms = [parse_arm(label) for label in labels]
    return [
        arm.label for index, arm in enumerate(arms) if arm.options not in [a.options for a in arms[:index]]
    ]


def _values(option: Option) -> tuple[str, ...]:
    if option.kind == "switch":
        return ("false" if option.default else "true",)
    return tuple(choice for choice in option.choices if choice not in option.cuda_only)  # a number has none


def launches() -> dict[str, Launch]:
    """Name the launches that together hold every arm."""
    groups: dict[tuple[str, ...], dict[str, list[Member]]] = {}
    for label in ARMS:
        arm = parse_arm(label)
        # An arm without such an option goes along with any start of its launcher.
        key = (
            arm.runtime.launcher,
            arm.options.get("controller", ""),
            "one process" * arm.traits.one_process,
            # One launch of all that torchrun starts would take longer than a launch may.
            "in shards" * arm.traits.mixes_collectives,
        )
        launch = groups.setdefault(key, {})
        launch.setdefault(Meeting(label, ()).name, []).append(Member(label))
    return {
        " ".join(filter(None, key)): Launch(
            key[0], tuple(Meeting(members[0].arm, tuple(members)) for members in launch.values())
        )
        for key, launch in groups.items()
    }


def _settled(arm: Arm) -> list[str]:
    return [
        f"{name}={arm.options[name]}"
        for name in SETTLED_BY_THE_LAUNCH
        if arm.options.get(name, "auto") != "auto"
    ]


HERE = [backend for backend in BACKENDS.values() if not backend.not_on_cpus and not backend.own_step]
"""The backends that run on CPUs by themselves."""
ARMS = [*chain.from_iterable(arms_of(backend) for backend in HERE), *SMALL_BUCKETS, *EARLY, *OF_SHARDS]
LAUNCHES = launches()
GROUPS = {meeting.name: meeting for launch in LAUNCHES.values() for meeting in launch.meetings}
LAUNCH_OF = {
    name: key
    for key, launch in LAUNCHES.items()
    for meeting in launch.meetings
    for name in (meeting.name, *(member.name for member in meeting.members))
}
