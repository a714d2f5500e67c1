"""Find out which backends can run, what is wrong with hosts, and how to fix it."""

from compare.doctor.availability import Survey, survey
from compare.doctor.examine import check_beforehand

__all__ = ["Survey", "check_beforehand", "survey"]
