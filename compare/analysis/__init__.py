"""Turn raw samples into figures and judgements, without side effects."""

from compare.analysis.record import Analysis, analyse

__all__ = ["Analysis", "analyse"]
