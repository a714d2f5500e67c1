"""State by which command something was measured, and what ran."""

from __future__ import annotations

from compare.report.document import Attested
from compare.schema.collectives import CollectivesRun
from compare.schema.results import Run
from compare.schema.scale import Series


def facts_of(made: Run | CollectivesRun | Series) -> list[tuple[str, str]]:
    """Return by which command something was measured, and when."""
    return [
        ("command", " ".join(made.command)),
        ("started", made.started_at),
        ("Ringside", made.ringside_version),
    ]


def attested_by(run: Run) -> list[Attested]:
    """Return what the first rank of each arm's last launch attests."""
    return [
        Attested(arm.label, launches[-1].launcher, launches[-1].ranks[0].attestation)
        for arm in run.config.arms
        if (launches := run.of(arm))
    ]
