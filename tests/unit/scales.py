"""Make scaling series with chosen step times."""

from __future__ import annotations

from compare.schema.scale import Mode, Scale, Series
from tests.unit.factories import a_launch, a_rank, a_run


def a_scale(
    milliseconds: dict[int, dict[str, list[float]]], *, mode: Mode = "weak", cores: int = 8, **changes
) -> Scale:
    """Make a series from step times, by count, arm and round."""
    series = Series(
        ringside_version="0",
        started_at="2026-11-25T09:00:00+00:00",
        command=["ringside", "scale"],
        mode=mode,
        counts=sorted(milliseconds),
    )
    runs = {}
    for count, arms in sorted(milliseconds.items()):
        config = {"ranks": count, "batch_size_per_rank": 64 if mode == "weak" else 64 // count}
        launches = [
            a_launch(arm, round_, ranks=[a_rank(rank, milliseconds=time) for rank in range(count)])
            for arm, times in arms.items()
            for round_, time in enumerate(times, start=1)
        ]
        changes |= {"cores": cores, "launches": launches}
        runs[count] = a_run(arms, config=config | {"rounds": 3}, **changes)
    return Scale(series=series, runs=runs)


BENDING = {
    1: {"none": [4.0, 4.0, 4.0], "ddp": [4.0, 4.4, 4.2], "mpi": [4.0, 4.0, 4.0]},
    2: {"none": [4.4, 4.4, 4.4], "ddp": [8.0, 8.8, 8.4], "mpi": [4.1, 4.1, 4.1]},
    4: {"none": [9.0, 9.0, 9.0], "ddp": [16.0, 17.0, 18.0], "mpi": [8.0, 8.0, 8.0]},
}
"""With 2 ranks ddp loses half, and mpi next to nothing."""
