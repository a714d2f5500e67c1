"""Find out what is installed, what is wrong, and its fix."""

from compare.doctor.availability import Survey, survey
from compare.doctor.examine import quick_check

__all__ = ["Survey", "quick_check", "survey"]
