"""What the contract suite launches: every arm of the registry, packed into as few launches as may be.

A launch costs seconds, most of them ``import torch``, so the arms that can share a launch do. Each launch
joins each of its groups once and trains one replica after another in it.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import msgspec

from backends import BACKENDS, Backend, Option
from compare.schema.arms import Arm, parse_arm

WORLDS = (1, 2, 3)

SMALL_BUCKETS = (
    "ddp:bucket_cap_mb=0.01",
    "manual:mode=overlap:bucket_mb=0.01",
    "horovod:mode=overlap:bucket_mb=0.01",
    "mpi:mode=overlap:bucket_mb=0.01",
)
"""With the buckets of the registry's defaults the small model of these tests would fit into one."""

EARLY = ("ddp:comm_hook=powersgd:powersgd_start=2",)
"""Compressed from the third step on, so that nearly all that is looked at is."""

NOT_VARIED = {
    "process_group": "auto means gloo on the CPU, where these tests run; nccl needs a GPU for each rank",
}
"""Choices that stay at their default, each with its reason."""

SETTLED_BY_THE_LAUNCH = ("controller", "process_group")
"""Options that the launcher or the group reads: arms that differ in one cannot share a launch."""


class Member(msgspec.Struct, frozen=True):
    """One replica that is looked at."""

    arm: str
    strategy: str = ""
    """A class of broken.py in the place of the arm's own strategy."""

    @property
    def name(self) -> str:
        return self.strategy or self.arm


class Meeting(msgspec.Struct, frozen=True):
    """One group, joined once, and the replicas that train in it."""

    arm: str
    """The group is this arm's; the others' is the same."""
    members: tuple[Member, ...]
    broken_groups: tuple[str, ...] = ()
    """Classes of broken.py that are looked at as if they were the group that was joined."""

    @property
    def name(self) -> str:
        arm = parse_arm(self.arm)
        alone = ["one process"] if arm.one_process else []
        return ":".join([BACKENDS[arm.backend].group.rpartition(":")[2], *_settled(arm), *alone])


class Launch(msgspec.Struct, frozen=True):
    """One start of a launcher."""

    launcher: str
    meetings: tuple[Meeting, ...]
    world: int = 1
    """Ranks of the run, whose batches together are the global one. Arms of one process start one."""
    refusals: bool = False
    """Whether the ranks also try to join where they must be refused."""
    group_checks: bool = True
    """Whether the groups are looked at as well as the replicas."""

    @property
    def processes(self) -> int:
        """Processes that the launcher starts."""
        return 1 if parse_arm(self.meetings[0].arm).one_process else self.world

    @property
    def options(self) -> dict[str, Any]:
        """What the launcher is told."""
        return parse_arm(self.meetings[-1].arm).options


def arms_of(backend: Backend) -> list[str]:
    """Every choice and every switch of a backend, one at a time; what comes to the same arm, once."""
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
        backend = BACKENDS[arm.backend]
        # An arm without such an option goes along with any start of its launcher.
        key = (backend.launcher, arm.options.get("controller", ""), "one process" * arm.one_process)
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


ARMS = [*chain.from_iterable(arms_of(backend) for backend in BACKENDS.values()), *SMALL_BUCKETS, *EARLY]
LAUNCHES = launches()
GROUPS = {meeting.name: meeting for launch in LAUNCHES.values() for meeting in launch.meetings}
LAUNCH_OF = {
    name: key
    for key, launch in LAUNCHES.items()
    for meeting in launch.meetings
    for name in (meeting.name, *(member.name for member in meeting.members))
}
