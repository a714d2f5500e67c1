"""Compare predictions with the measurements of another run."""

from __future__ import annotations

import msgspec

from compare.analysis.estimate import Estimate
from compare.analysis.figures import Figures
from compare.analysis.predict import forecast
from compare.errors import OutputError
from compare.schema.hosts import Link
from compare.schema.results import Run

_ALIKE = ("model", "batch_size_per_rank", "accumulate", "precision", "compile", "threads_per_rank")
"""Settings that must be equal in both runs, because no prediction takes them into account."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The predicted and the measured step time of one arm."""

    arm: str
    hosts: int
    predicted_seconds: Estimate
    measured_seconds: Estimate
    error: float
    """Predicted time over measured time, minus one."""
    covered: bool
    """Whether the measured mean lies in the interval of the prediction."""


class Against(msgspec.Struct, frozen=True, kw_only=True):
    """Arms predicted from one run, and measured in another."""

    comparisons: list[Comparison]
    left_out: dict[str, str]
    """Why arms are not compared, by label."""
    same_network: bool
    """Whether ranks and link are those of the measured run, so that little is left to predict."""


def compare_with(run: Run, other: Run, link: Link | None = None) -> Against:
    """Predict the step times of ``other`` from ``run``, and compare them with the measured ones.

    ``link`` is the network of ``other``; the default is the link that ``other`` recorded as a rehearsal.

    Raises:
        OutputError: the settings of the runs differ, ``other`` has several ranks on a host, nothing can be
            predicted, or no predicted arm was measured in ``other``.
    """
    _require_alike(run, other)
    link = link or other.network.rehearsed
    made = forecast(run, [other.config.ranks], link)
    predicted = {prediction.arm: prediction for prediction in made.predictions}
    found, left_out, by_arm = [], dict(made.refused), Figures(other).by_arm
    for arm, prediction in predicted.items():
        if not by_arm[arm]:
            left_out[arm] = "the other run did not launch it"
            continue
        measured = Estimate.geometric(launch.step_seconds for launch in by_arm[arm].values())
        step = prediction.step_seconds
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
            left_out[asked.label] = "this run did not launch it"
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
    found = [f"They differ: {'; '.join(differing)}."] if differing else []
    if any(host.slots > 1 for host in other.hosts):
        found.append("The other run has several ranks on a host, which predictions do not model.")
    if found:
        raise OutputError(
            "The two runs cannot be compared by a prediction.",
            found=" ".join(found),
            remedy="Measure both with the same flags, and with one rank on each host.",
        )
