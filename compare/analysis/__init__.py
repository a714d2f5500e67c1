"""Turn the raw samples of a run into figures and judgements, without any side effect."""

from compare.analysis.record import Analysis, analyse

__all__ = ["Analysis", "analyse"]
