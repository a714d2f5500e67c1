"""Choose the fault of each mode, for ``sitecustomize.py`` beside this file."""

from tests.contract.broken import SkipsAParameter, Sums

FAULTS = {"flat": Sums, "per_parameter": SkipsAParameter}


def choose(model, make_optimizer, group, options):
    return FAULTS[options["mode"]](model, make_optimizer, group, options)
