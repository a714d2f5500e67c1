"""Turn results into documents, and write them in any format.

Each ``of_…`` module turns one kind of result into a ``Document``. ``formats`` writes a document without
knowing which command made it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from compare.analysis import Analysis, analyse
from compare.report.document import Document, View
from compare.report.formats import FORMATS, write
from compare.schema.collectives import CollectivesRun
from compare.schema.metered import Metered
from compare.schema.results import Run, Verification
from compare.schema.scale import Scale
from compare.schema.store import Result

__all__ = ["FORMATS", "Result", "View", "document_of", "write"]

_DEFAULT_VIEW = View()


def document_of(
    result: Result, form: str = "table", view: View = _DEFAULT_VIEW, *, analysis: Analysis | None = None
) -> Document:
    """Return the document of a result, with as much detail as the format ``form`` is to show.

    ``html`` gives a page with every detail. ``table`` gives the short view of a run, unless ``view`` asks for
    more. A caller that has analysed the run already passes its ``analysis``.
    """
    from compare.report import of_collectives, of_meter, of_run, of_scale, of_verification

    if not isinstance(result, Run):
        detail = view.detail or form == "html"
        makers: Mapping[type[Result], Callable[..., Document]] = {
            Scale: of_scale.document_of,
            CollectivesRun: partial(of_collectives.document_of, detail=detail),
            Verification: partial(of_verification.document_of, view=replace(view, detail=detail)),
            Metered: of_meter.document_of,
        }
        return makers[type(result)](result)
    analysis = analysis or analyse(result)
    if form == "html":
        return of_run.page(result, analysis, view)
    if form == "table" and not view.detail:
        return of_run.brief(result, analysis, view)
    return of_run.document_of(result, analysis, view)
