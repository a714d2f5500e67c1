"""Plant one fault each in a strategy of ours."""

from __future__ import annotations

from backends.strategies.averaging import AveragingReplica, FlatReducer
from tests.proof.case import mutation

MLP = "right_models.py:plain"


@mutation("manual", of=MLP)
def a_sum_in_place_of_the_mean():
    AveragingReplica.backward = lambda self, loss: loss.backward()


@mutation("manual", of=MLP)
def the_flat_reducer_never_reduces():
    FlatReducer.reduce = lambda self: None
