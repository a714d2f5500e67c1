"""State which command measured something, and what its libraries attest."""

from __future__ import annotations

from compare.report.document import Attested
from compare.schema.collectives import CollectivesRun
from compare.schema.results import Run
from compare.schema.scale import Series


def facts_of(made: Run | CollectivesRun | Series) -> list[tuple[str, str]]:
    """Return pairs of a name and a value: the command, when it started, and the version of Ringside."""
    return [
        ("command", " ".join(made.command)),
        ("started", made.started_at),
        ("Ringside", made.ringside_version),
    ]


def attested_by(run: Run) -> list[Attested]:
    """Return what the first rank of each arm's last launch attests; arms without a launch are left out."""
    return [
        Attested(arm.label, launches[-1].launcher, launches[-1].ranks[0].attestation)
        for arm in run.config.arms
        if (launches := run.of(arm))
    ]
