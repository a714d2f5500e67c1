"""Render the table of ``compare verify``."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table

from compare.analysis.parity import AT_PERIOD_1
from compare.report.headline import headline
from compare.report.rows import printable_line
from compare.schema.results import ArmVerification, Gate, Verification

_SHOWN_STEPS = (1, 5, 10, 20)
_FIGURES = ("float64", "float32", *(f"step {step}" for step in _SHOWN_STEPS))


def renderable(verification: Verification) -> RenderableType:
    """Build one row per arm, then the failures and notes."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("arm", "ranks", *_FIGURES, "verdict"):
        table.add_column(heading, justify="right" if heading in _FIGURES else "left", overflow="fold")
    for arm in verification.arms:
        table.add_row(*map(printable_line, _row(arm)), style=None if arm.proven else "red")
    return Group(
        printable_line(headline(verification.run), style="bold"),
        table,
        *(printable_line(line, style="bold yellow") for line in _warnings(verification)),
        *(printable_line(line, style="red") for line in _failures(verification)),
        *(printable_line(line, style="dim") for line in _notes(verification)),
    )


def _row(arm: ArmVerification) -> list[str]:
    gates = {gate.name: gate for gate in arm.gates}
    curve = [_figure(arm.curve[step - 1]) if step <= len(arm.curve) else "–" for step in _SHOWN_STEPS]
    cells = [_cell(gates.get(name)) for name in ("ranks", "float64", "float32")]
    return [arm.arm, *cells, *curve, _verdict(arm)]


def _cell(gate: Gate | None) -> str:
    if gate is None:
        return "–"
    if gate.outcome == "exempt":
        if gate.figure is None:
            return gate.what or "exempt"
        return f"{_figure(gate.figure)} {'other' if gate.what else 'lossy'}"
    if gate.outcome == "failed":
        return "FAILED" if gate.figure is None else f"{_figure(gate.figure)} FAILED"
    return "same" if gate.limit is None else _figure(gate.figure)


def _figure(difference: float | None) -> str:
    if difference is None:
        return "no number"
    return f"{difference:.0e}" if difference else "0"


def _verdict(arm: ArmVerification) -> str:
    if arm.failure:
        return "did not run"
    if not arm.proven:
        return "NOT the same training"
    passes = [gate for gate in arm.gates if gate.outcome == "exempt" and gate.name != "ranks"]
    if not passes:
        found = {gate.what for gate in arm.gates}
        return AT_PERIOD_1 if AT_PERIOD_1 in found else "the same training"
    return passes[0].what or ("exempt" if passes[0].figure is None else "lossy by design")


def _warnings(verification: Verification) -> list[str]:
    run = verification.run
    lines = [] if run.complete else ["INCOMPLETE: it was stopped before every arm had run."]
    if run.dataset.note:
        lines.append(f"{run.dataset.note}.")
    return lines + [f"{name} did not run: {reason}." for name, reason in run.left_out.items()]


def _failures(verification: Verification) -> Iterator[str]:
    for arm in verification.arms:
        if arm.failure:
            yield arm.failure.message
        failed = {gate.name: gate for gate in arm.gates if gate.outcome == "failed"}
        if "float64" in failed:
            failed.pop("float32", None)  # it fails for the same reason, with more rounding
        if "samples" in failed:
            failed = {"samples": failed["samples"]}
        for gate in failed.values():
            yield f"{gate.what} {gate.found}"


def _notes(verification: Verification) -> Iterator[str]:
    yield "ranks: all start from one model, train, and end with the same parameters, bit for bit."
    gates = [gate for arm in verification.arms for gate in arm.gates]
    limits: dict[str, float] = {}
    for gate in gates:
        if gate.limit is not None:
            limits[gate.name] = max(gate.limit, limits.get(gate.name, 0.0))
    if limits:
        allowed = " and ".join(f"{limit:.0e} in {name}" for name, limit in limits.items())
        yield (
            "float64, float32: largest relative difference of a step from that of a single process, in 20 "
            f"steps of plain SGD. Rounding allows up to {allowed}."
        )
    for arm in verification.arms:
        for gate in arm.gates:
            if gate.outcome == "passed" and gate.what not in {"", AT_PERIOD_1}:
                yield f"{arm.arm}, {gate.name}: {gate.what}"
    yield (
        f"step 1 to {_SHOWN_STEPS[-1]}: distance from one process on the combined batch, with the run's "
        "optimizer. It is no gate: rounding grows, and dropout and BatchNorm differ."
    )
