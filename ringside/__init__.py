"""Ringside in Python: read results, start comparisons and judge ratios of your own.

    import ringside

    run = ringside.load("last")             # any result, as `ringside report` reads it
    run.table()                             # records; a data frame where pandas is installed
    run                                     # in a notebook: the page with its pictures

    run = ringside.compare(["ddp", "mpi"], workload="train.py:make", budget=180)
    print(run.analysis.summary.lead)

    ringside.judge({"mine": [1.21, 1.18, 1.24, 1.20, 1.19]})["mine"].kind       # 'faster'

    with ringside.meter() as measured:      # in a rank, around a training loop of your own
        train(model)
    print(measured.result)

Every mistake of a caller is a `RingsideError`, which says what failed, what was found and what to do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ringside.meter import meter

if TYPE_CHECKING:
    from compare.analysis.verdict import Verdict
    from compare.errors import RingsideError
    from ringside.result import Result

__all__ = ["RingsideError", "compare", "judge", "load", "meter"]


def __getattr__(name: str) -> Any:
    """Return ``RingsideError``, whose package is imported when it is needed.

    ``python -m ringside.meter`` imports this module in a folder that may have a module ``compare``.
    """
    if name == "RingsideError":
        from compare.errors import RingsideError

        return RingsideError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load(path: str | Path = "last") -> Result:
    """Return the result of any command that measures, given its folder or its file.

    ``last`` is the newest one in the folder ``runs``.

    Raises:
        OutputError: there is no result, or it is damaged or of another version.
    """
    from compare.schema.store import RESULT_FILES, find_run, read_result
    from ringside.result import Result

    folder = find_run(Path(path), RESULT_FILES)
    return Result(read_result(folder), folder)


def compare(
    arms: str | Iterable[str] = (),
    *,
    budget: float | None = None,
    repeats: int | None = None,
    baseline: str | None = None,
    control: bool = True,
    **flags: Any,
) -> Result:
    """Run the same training through every arm, side by side, as ``ringside run`` does; return the result.

    Progress goes to standard error; ``quiet=True`` leaves it out. Settings in pyproject.toml are not read,
    because a notebook's figures should depend only on what it says.

    Args:
        arms: names of arms with their options, such as ``ddp:bucket_cap_mb=1``; empty for the default ones.
        budget: maximum time in seconds; rounds are added until every verdict is settled.
        repeats: number of rounds, in place of a budget.
        baseline: the arm that the others are compared with; the default is the first one.
        control: whether the ranks also train without communication.
        flags: other flags of ``ringside run`` by their names, such as ``workload="train.py:make"``,
            ``num_proc=4``, ``hosts="node1:4,node2:4"`` and ``steps="60:warmup=10"``.

    Raises:
        UsageError: an argument has a wrong name or value.
        RingsideError: the run failed; what had finished is kept in its folder.
    """
    from compare.cli.output import carry_out
    from compare.cli.requests import read_request
    from compare.errors import UsageError
    from compare.experiment import compare_arms
    from compare.experiment.settle import choose_length
    from ringside.flags import as_flags, as_words, require_number
    from ringside.result import Result

    if "backend" in flags:
        raise UsageError(
            "ringside.compare has no argument 'backend'.",
            remedy="Name the arms first: compare(['ddp', 'mpi']).",
        )
    named = {"backend": [arms] if isinstance(arms, str) else list(arms), **flags}
    for name, number, kind in (("budget", budget, float), ("repeats", repeats, int)):
        require_number(name, number, kind)
    given = as_flags(named)
    words = as_words(
        {**named, "budget": budget, "repeats": repeats, "baseline": baseline, "control": control}
    )
    request = read_request(
        given, baseline=baseline, control=control, with_aa_test=True, **choose_length(repeats, budget)
    )
    return Result(*carry_out(compare_arms, replace(request, command=words), given))


def judge(ratios: Mapping[str, Sequence[float]]) -> dict[str, Verdict]:
    """Return a verdict for each name, from its speed over that of a common baseline in paired rounds.

    The law is that of a run with a single look: paired t tests on the logarithms, with Holm's correction over
    all names. At most 5 of 100 calls find a difference where there is none. With fewer than five rounds all
    names stay *open*. A difference within 3 % does not matter.

    Args:
        ratios: by name, one ratio per round: the baseline's time over this one's, so above 1 is faster.

    Raises:
        UsageError: a ratio is not a number above zero, or names have different numbers of rounds.
    """
    from compare.analysis.budget import FIRST_LOOK
    from compare.analysis.verdict import judge as judge_logarithms
    from compare.errors import UsageError
    from compare.text import listed

    for name, values in ratios.items():
        if not isinstance(values, Iterable):
            raise UsageError(
                f"The ratios of {name!r} cannot be judged.",
                found=f"They are {values!r}.",
                remedy="Give a list.",
            )
    ratios = {name: [*values] for name, values in ratios.items()}
    counts = {name: len(values) for name, values in ratios.items()}
    if 0 in counts.values() or len(set(counts.values())) > 1:
        raise UsageError(
            "Every name needs as many ratios as the others, one for each round.",
            found=f"There are {listed(f'{count} of {name!r}' for name, count in counts.items())}.",
            remedy="Leave out a round that one of them lacks from all of them.",
        )
    for name, values in ratios.items():
        for value in values:
            if not (isinstance(value, Real) and 0 < value < math.inf):
                raise UsageError(
                    f"The ratios of {name!r} cannot be judged.",
                    found=f"{value!r} is among them.",
                    remedy="Give the baseline's time over this one's, for each round: a number above zero.",
                )
    logarithms = {name: [math.log(value) for value in values] for name, values in ratios.items()}
    return judge_logarithms(logarithms, fewest=FIRST_LOOK)
