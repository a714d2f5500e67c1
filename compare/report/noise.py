"""Write what noise hides in a run, and how far its intervals can be trusted."""

from __future__ import annotations

from compare.analysis.looks import ALPHA, FIRST_LOOK
from compare.analysis.noise import budget_to_rank, narrowest
from compare.analysis.power import POWER
from compare.analysis.step_times import OTHER_LOAD_LIMIT
from compare.analysis.summary import Summary
from compare.report.columns import in_percent, size_of
from compare.schema.results import Run
from compare.text import listed

STALLS = 0.05
"""An arm has stalls if the mean over its blocks exceeds the median by more than this share."""
WRONG_AT_MOST = f"in at most {ALPHA * 100:g} of 100 runs"
VERDICTS_TOGETHER = (
    f"All verdicts together, at every look, find a difference where there is none {WRONG_AT_MOST}. "
    "That is why each interval is as wide as a 95 % interval or wider. All intervals together may miss more "
    "often."
)
FASTEST_IS_APART = (
    "Fastest is judged apart, with the quickest arm as the baseline: every other arm must be slower. "
    f"It is wrong {WRONG_AT_MOST}, too."
)


def nothing_ranked(run: Run, summary: Summary) -> str:
    """Return the alert that noise hides every difference, with the reason and the remedy."""
    width = narrowest([arm.verdict for arm in summary.arms if arm.verdict])
    if width is None:
        return (
            f"NOTHING CAN BE RANKED: other processes used more than {OTHER_LOAD_LIMIT * 100:g} % of the CPUs "
            f"in every round. Stop other programs, and take {FIRST_LOOK} rounds or more."
        )
    remedy = "Stop other programs" if summary.noisy_rounds else "Measure on a quieter machine"
    return (
        "NOTHING CAN BE RANKED: every verdict is open, and the narrowest interval reaches "
        f"{size_of(width)} either way. {remedy}, or give it longer: --budget {budget_to_rank(run, width)}."
    )


def intervals(summary: Summary) -> list[str]:
    """Return notes on how often the intervals and the name of the fastest arm may be wrong.

    Empty if no verdict has an interval, or if noise hides every difference.
    """
    shown = [arm.verdict for arm in summary.arms if arm.verdict and arm.verdict.low is not None]
    if not shown or summary.noise_hides_all:
        return []
    fastest = any(arm.fastest for arm in summary.arms)
    return [VERDICTS_TOGETHER, *([FASTEST_IS_APART] if fastest else [])]


def would_have_seen(summary: Summary) -> list[str]:
    """Return a line with the difference that each open verdict would have found in 80 of 100 such runs."""
    of = {
        arm.arm: arm.would_have_seen
        for arm in summary.arms
        if arm.verdict and arm.verdict.kind == "unresolved" and arm.would_have_seen is not None
    }
    if not of or summary.noise_hides_all:
        return []
    each = listed(f"{size_of(1 + difference)} in {arm}" for arm, difference in of.items())
    return [f"Open: {POWER * 100:g} of 100 such runs would have seen a difference of {each}."]


def stalls(summary: Summary) -> list[str]:
    """Return a warning that names the arms in which some blocks took much longer than most."""
    above = {arm.arm: arm.mean_over_median.mean for arm in summary.arms if arm.mean_over_median}
    each = listed(f"{in_percent(ratio)} % for {arm}" for arm, ratio in above.items() if ratio > 1 + STALLS)
    if not each or summary.noise_hides_all:
        return []
    found = f"Stalls: some blocks took so long that their mean exceeds the median, by {each}."
    return [f"{found} The step times contain them."]
