"""Settings of every bench: MNIST's folder, the output, and the thoroughness."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from compare import data

ROOT = Path(__file__).resolve().parents[2]


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


def find_mnist() -> Path:
    """Find the folder that holds the real MNIST."""
    places = (ROOT / "data", ROOT.parent / "shared" / "data")
    for place in places:
        if data.holds("mnist", place / "MNIST" / "raw"):
            return place
    raise SystemExit(f"MNIST is not in {ROOT / 'data'}: get it with `compare data fetch --data-dir data`")
