"""Write the notes that ranks attest: about loaders, the user's file, and warnings of libraries."""

from __future__ import annotations

from collections.abc import Iterator

from compare.schema.results import Run
from compare.text import counted, listed

_MOST = 3


def told(run: Run) -> list[str]:
    """Return a line for each note that ranks attest, only once for all ranks."""
    return [*_workers(run), *_dtype(run), *_called_once(run), *_warnings(run)]


def _attested(run: Run, name: str) -> Iterator[tuple[str, object]]:
    """Yield the arm of each rank, with what the rank attests as ``name``, or None."""
    for launch in run.launches:
        for rank in launch.ranks:
            yield launch.arm, rank.attestation.get(name)


def _workers(run: Run) -> Iterator[str]:
    found = (batch.get("loader_workers") for _, batch in _attested(run, "batch") if isinstance(batch, dict))
    most = max((workers for workers in found if isinstance(workers, int)), default=0)
    if most:
        yield f"Each rank's loader has {counted(most, 'worker')}, which are processes beside its threads."


def _dtype(run: Run) -> Iterator[str]:
    for _, found in _attested(run, "default_dtype"):
        if isinstance(found, str) and found:
            yield f"Your file sets the default dtype: {found}."
            return


def _called_once(run: Run) -> Iterator[str]:
    if any(found for _, found in _attested(run, "function_called_once")):
        yield (
            "Your function takes too long to be called for each part of the proof. It was called once, so "
            "its models are copies, and they share what its closures remember."
        )


def _warnings(run: Run) -> Iterator[str]:
    arms: dict[str, dict[str, None]] = {}
    for arm, texts in _attested(run, "warnings"):
        for text in texts if isinstance(texts, list) else ():
            arms.setdefault(str(text), {})[arm] = None
    for text, its in list(arms.items())[:_MOST]:
        yield f"A library warns in {listed(its)}: {text}."
    if len(arms) > _MOST:
        yield f"{counted(len(arms) - _MOST, 'more warning')} of libraries: read the logs of the ranks."
