"""Build what a gate finds."""

from compare.analysis.change import Change, Changes, outcome_of
from compare.analysis.figures import Estimate


def a_change(arm, kind="not slower", ratio=1.01):
    figure = Estimate(4.321, 4.2, 4.4, 5, "t")
    return Change(
        arm=arm,
        kind=kind,
        speed_ratio=1 / ratio,
        low=1 / ratio / 1.02,
        high=1 / ratio * 1.02,
        level=0.95,
        rounds=(5, 5),
        least=1 / ratio / 1.015,
        old=figure,
        new=figure.scaled(ratio),
    )


def a_gate(*changes, **given):
    fields = {"command": "gate", "old": "there", "new": "here", "limit": 0.05, "reference": ""}
    fields |= {"changes": list(changes), "outcome": outcome_of(changes)}
    return Changes(**fields | given)
