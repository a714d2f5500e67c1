"""Compare an arm with itself: ``ringside aa``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from compare.cli.options import RunFlags, arms_flag, length_flag, output_option, training_flag, with_flags
from compare.cli.requests import read_request
from compare.cli.run import run_and_print
from compare.errors import UsageError


@with_flags(
    RunFlags,
    {"max_reruns": 10},
    backend=Annotated[list[str] | None, arms_flag(help="The one arm that is compared with itself.")],
    output=Annotated[Path | None, output_option("-aa")],
)
def aa(
    flags: RunFlags,
    *,
    comparisons: Annotated[int, length_flag(min=1, help="Number of comparisons.")] = 10,
    repeats: Annotated[int, length_flag(min=5, help="Rounds of each comparison.")] = 5,
    steps: Annotated[int, training_flag(help="Training steps of a launch.")] = 150,
) -> None:
    """Compare an arm with itself, as an A/A test.

    How often does this tool report a difference where none exists?
    """
    request = read_request(flags, steps=steps, rounds=comparisons * repeats, comparisons=comparisons)
    if len(request.arms) != 1:
        raise UsageError(
            "An A/A test compares one arm with itself.",
            found=f"--backend names {len(request.arms)} arms." if request.arms else "No arm was named.",
            remedy="Name one arm, for example --backend ddp.",
        )
    run_and_print(request, flags)
