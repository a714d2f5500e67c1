"""Compare ways of synchronising gradients on your machines."""

from pathlib import Path

__version__ = "0.1.0"

PROTOCOL = 4
"""Version of the files that the parent and its ranks exchange; the package of both must have the same."""

PACKAGE_ROOT = Path(__file__).resolve().parents[1]
"""Folder from which ``compare`` and ``backends`` are imported."""
