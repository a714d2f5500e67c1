"""Collect these tests for ``make fuzz`` alone; they take minutes."""

from __future__ import annotations

import os

collect_ignore = [] if "FUZZ_EXAMPLES" in os.environ else ["test_fuzz.py"]
