"""Settings of every bench: MNIST's folder, the output, and the thoroughness."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    data_dir: Path
    """Holds MNIST/raw."""
    folder: Path
    """For temporary files; removed at the end."""
    quick: bool
    """Run a smoke test: few pairs, wide intervals."""

    figure: Path | None
    """File of the picture; None for no picture."""

    @property
    def raw(self) -> Path:
        return self.data_dir / "MNIST" / "raw"

    def pick(self, thorough, quick):
        """Return the number for a whole run or for a quick one."""
        return quick if self.quick else thorough
