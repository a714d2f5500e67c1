"""Settle what a user's request leaves open, choose the next launches, and carry them out."""

from compare.experiment.collectives import SweepRequest, compare_collectives
from compare.experiment.run import compare_arms, plan
from compare.experiment.scale import ScaleRequest, plan_scale, scale_arms
from compare.experiment.verify import verify_arms

__all__ = [
    "ScaleRequest",
    "SweepRequest",
    "compare_arms",
    "compare_collectives",
    "plan",
    "plan_scale",
    "scale_arms",
    "verify_arms",
]
