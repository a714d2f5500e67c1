"""Compare predictions with the measurements of another run."""

from __future__ import annotations

import msgspec

from compare.analysis.estimate import Estimate
from compare.analysis.predict import forecast
from compare.analysis.step_times import step_seconds
from compare.errors import OutputError
from compare.schema.link import Link
from compare.schema.results import Run

_ALIKE = ("model", "batch_size_per_rank", "accumulate", "precision", "compile", "threads_per_rank")
"""Settings that no prediction changes."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One arm's prediction beside its measurement."""

    arm: str
    hosts: int
    predicted_seconds: Estimate
    measured_seconds: Estimate
    error: float
    """Predicted over measured, minus one."""
    covered: bool
    """The interval holds the measured time."""


class Against(msgspec.Struct, frozen=True, kw_only=True):
    """Arms predicted from one run, and measured in another."""

    comparisons: list[Comparison]
    left_out: dict[str, str]
    """Reasons of the arms that are not compared."""
    same_network: bool
    """Hosts and link are the same, so the step is nearly given."""


def compare_with(run: Run, other: Run, link: Link | None = None) -> Against:
    """Predict another run's arms from a run, and compare.

    Its link is the recorded one, if it is a rehearsal.

    Raises:
        OutputError: the runs trained otherwise, nothing can be predicted, or no arm is in both.
    """
    _require_alike(run, other)
    link = link or other.network.rehearsed
    made = forecast(run, [other.config.ranks], link)
    predicted = {prediction.arm: prediction for prediction in made.predictions}
    found, left_out = [], dict(made.refused)
    for arm, prediction in predicted.items():
        launches = [launch for launch in other.launches if launch.arm == arm]
        if not launches:
            left_out[arm] = "the other run has no launch of it"
            continue
        measured, step = Estimate.geometric(map(step_seconds, launches)), prediction.step_seconds
        found.append(
            Comparison(
                arm=arm,
                hosts=prediction.hosts,
                predicted_seconds=step,
                measured_seconds=measured,
                error=step.mean / measured.mean - 1,
                covered=step.low <= measured.mean <= step.high,
            )
        )
    for asked in other.config.arms:
        if asked.traits.synchronises and asked.label not in {*predicted, *left_out}:
            left_out[asked.label] = "this run has no launch of it"
    if not found:
        raise OutputError(
            "The two runs have no arm in common that can be predicted.",
            found=f"{', '.join(predicted)} can be predicted.",
            remedy="Measure one of them in the other run.",
        )
    same = other.config.ranks == run.config.ranks and link == run.network.rehearsed
    return Against(comparisons=found, left_out=left_out, same_network=same)


def _require_alike(run: Run, other: Run) -> None:
    differing = [
        f"{name} {getattr(run.config, name)} and {getattr(other.config, name)}"
        for name in _ALIKE
        if getattr(run.config, name) != getattr(other.config, name)
    ]
    if any(host.slots > 1 for host in other.hosts):
        differing.append("several ranks on a host, which is not modelled")
    if differing:
        raise OutputError(
            "The two runs cannot be compared by a prediction.",
            found=f"They differ: {'; '.join(differing)}.",
            remedy="Measure both with the same flags, one rank on each host.",
        )
