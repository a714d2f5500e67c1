"""Find out what is installed, what is wrong, and its fix."""

from compare.doctor.availability import Survey, survey
from compare.doctor.beforehand import check_beforehand

__all__ = ["Survey", "check_beforehand", "survey"]
