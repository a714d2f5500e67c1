"""Judge a gate, in which arms run under two interpreters in the same rounds.

Every arm is compared with its twin under the other interpreter, round by round. So a gate shows a slower
computation as well as slower synchronising.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from compare.analysis.attested import transport_of
from compare.analysis.budget import is_oversubscribed, looks, rounds_done
from compare.analysis.change import Changes, Differing, from_verdict, outcome_of
from compare.analysis.estimate import Estimate
from compare.analysis.looks import FIRST_LOOK
from compare.analysis.ranking import log_ratios
from compare.analysis.step_times import noisy_rounds, step_seconds
from compare.analysis.uneven import withhold
from compare.analysis.verdict import Verdict, judge
from compare.errors import ConditionsError
from compare.schema.arms import Arm, Interpreter
from compare.schema.results import RankResult, Run


def doubled(arms: Sequence[Arm], other: Interpreter) -> tuple[Arm, ...]:
    """Return each arm followed by its twin, which runs under the ``other`` interpreter."""
    return tuple(twin for arm in arms for twin in (arm, msgspec.structs.replace(arm, against=other)))


def judge_gate(run: Run) -> Changes | None:
    """Compare the step times of every arm with those of its twin; None if the run is no gate.

    Each ratio is the step time in this environment over that in the other one. If an arm has no common round,
    it is left out, and the outcome is *too noisy*. If threads outnumber cores, every change is unresolved.
    """
    limit = run.config.slower_limit
    other = next((arm.against for arm in run.config.arms if arm.against), None)
    if limit is None or other is None:
        return None
    pairs = [(new, old) for new, old in pairs_of(run.config.arms) if log_ratios(run, new, old)]
    ratios = {new.label: log_ratios(run, new, old) for new, old in pairs}
    found = _judge(run, pairs, ratios, limit) if ratios else {}
    changes = []
    for new, old in pairs:
        change = from_verdict(new.label, found[new.label])
        changes.append(
            msgspec.structs.replace(
                change,
                kind="unresolved" if is_oversubscribed(run) else change.kind,
                old=Estimate.geometric(map(step_seconds, run.of(old))),
                new=Estimate.geometric(map(step_seconds, run.of(new))),
            )
        )
    return Changes(
        command="gate",
        old=describe(other),
        new="this environment",
        limit=limit,
        reference="",
        changes=changes,
        outcome=outcome_of(changes) if len(changes) == len(run.config.arms) // 2 else "too noisy",
        changed=list(_changed(run, pairs)),
        notes=list(_notes(run, uneven=any(verdict.uneven_load for verdict in found.values()))),
    )


def _judge(
    run: Run, pairs: Sequence[tuple[Arm, Arm]], ratios: Mapping[str, Sequence[float]], limit: float
) -> dict[str, Verdict]:
    twin = {new.label: old.label for new, old in pairs}
    return judge(
        ratios,
        looks(run),
        margin=limit,
        fewest=FIRST_LOOK,
        one_sided=True,
        accept=lambda name, verdict: withhold(run, twin[name], name, verdict),
    )


def describe(other: Interpreter) -> str:
    """Return a text with an interpreter's path, its torch version, and whose worker's code it runs."""
    code = "its own" if other.own_sources else "this package's, by PYTHONPATH"
    return f"{other.executable} (torch {other.torch}; worker's code: {code})"


def check_interpreter(run: Run, arm: Arm, ranks: Sequence[RankResult], *, here: str) -> None:
    """Require that the ranks of a gate ran in the environment of their arm; other runs pass.

    ``here`` is the ``sys.prefix`` of this process.

    Raises:
        ConditionsError: a rank attests another environment or other sources than its arm asks for.
    """
    if run.config.slower_limit is None:
        return
    other = arm.against
    asked_of = {"prefix": other.prefix, "sources": other.sources} if other else {"prefix": here}
    for rank in ranks:
        for name, asked in asked_of.items():
            found = rank.attestation.get(name)
            if found != asked:
                raise ConditionsError(
                    f"{arm.label}: rank {rank.rank} did not run in {asked_of['prefix']}.",
                    found=f"It attests {name} {found}, not {asked}.",
                    remedy="Install torch and its launchers in that environment itself.",
                )


def pairs_of(arms: Sequence[Arm]) -> Iterator[tuple[Arm, Arm]]:
    """Yield each arm of this environment with its twin under the other interpreter, if there is one."""
    for new in arms:
        twin = next((a for a in arms if a.against and (a.backend, a.given) == (new.backend, new.given)), None)
        if new.against is None and twin:
            yield new, twin


def _changed(run: Run, pairs: Sequence[tuple[Arm, Arm]]) -> Iterator[Differing]:
    """List the versions, sources and transports that twins attest differently, each once."""
    seen = set()
    for new, old in pairs:
        before, after = (run.of(arm)[0].ranks[0] for arm in (old, new))
        for name in ("python", "torch", "ringside", "sources", "prefix"):
            one = Differing(name, str(before.attestation.get(name)), str(after.attestation.get(name)))
            if one.old != one.new and one not in seen:
                seen.add(one)
                yield one
        if transport_of(before) != transport_of(after):
            yield Differing(f"transport of {new.label}", transport_of(before), transport_of(after))


def _notes(run: Run, *, uneven: bool) -> Iterator[str]:
    if uneven:
        yield "Other programs ran beside one side more than beside the other, which may explain a difference."
    noisy = noisy_rounds(run)
    if noisy:
        yield f"Other programs ran in {len(noisy)} of {rounds_done(run)} rounds."
    if is_oversubscribed(run):
        yield "Ranks and threads outnumber the cores, so nothing is judged."
    elif rounds_done(run) < FIRST_LOOK:
        yield f"Nothing is judged before round {FIRST_LOOK}."
    if not run.complete:
        yield "The run was stopped, or failed."
