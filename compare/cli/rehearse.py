"""Rehearse on hosts that are made for one command: ``ringside rehearse``."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from compare.cli.requests import REHEARSED

REHEARSABLE = ("run", "verify", "collectives", "scale", "doctor")
"""The commands that can be rehearsed, because they take hosts."""


def rehearse(
    context: typer.Context,
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND", help="A command that takes hosts: run --backend ddp.")
    ],
    *,
    hosts: Annotated[int, typer.Option(help="Number of hosts.")] = 2,
    slots: Annotated[int, typer.Option(help="Slots of each host.")] = 1,
    link: Annotated[
        str | None,
        typer.Option(
            show_default="as fast as this machine",
            help="RATE or RATE,LATENCY of each host's network: 100mbit, or 1gbit,2ms.",
        ),
    ] = None,
) -> None:
    """Execute a command on hosts that are made for it.

    The hosts are on this machine. Each has its own network interface, with real limits. Nothing of them is
    left afterwards.
    """
    from compare.launch.engines.detect import require_started_once
    from compare.launch.engines.rehearsal import MOST_HOSTS, open_rehearsal
    from compare.schema.config import require
    from compare.schema.hosts import MAX_SLOTS, Link, parse_link

    require_started_once(os.environ)
    require(command[0] in REHEARSABLE, "The command of a rehearsal", command[0], " or ".join(REHEARSABLE))
    require(1 <= hosts <= MOST_HOSTS, "--hosts", hosts, f"a whole number from 1 to {MOST_HOSTS}")
    require(1 <= slots <= MAX_SLOTS, "--slots", slots, f"a whole number from 1 to {MAX_SLOTS}")
    limits = parse_link(link) if link else Link()
    with open_rehearsal(hosts, slots, limits) as allocation:
        token = REHEARSED.set(allocation)
        try:
            status = context.find_root().command.main(command, prog_name="ringside", standalone_mode=False)
        finally:
            REHEARSED.reset(token)
    raise typer.Exit(status or 0)
