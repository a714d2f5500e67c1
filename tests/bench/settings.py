"""What every bench is given: where MNIST lies, where to write, and how thorough to be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from compare.data import load
from compare.errors import DataError

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Settings:
    data_dir: Path
    """Holds MNIST/raw."""
    folder: Path
    """For whatever is written meanwhile; removed at the end."""
    quick: bool
    """A smoke test: few pairs, wide intervals."""

    figure: Path | None
    """Where the picture goes; None for no picture."""

    @property
    def raw(self) -> Path:
        return self.data_dir / "MNIST" / "raw"

    def pick(self, thorough, quick):
        """Take one of two numbers, for the whole run or the quick one."""
        return quick if self.quick else thorough


def find_mnist() -> Path:
    """Find the folder that holds MNIST, whole and genuine."""
    places = (ROOT / "data", ROOT.parent / "shared" / "data")
    for place in places:
        try:
            found = load(place / "MNIST" / "raw")
        except DataError:
            continue
        if found.name == "mnist":
            return place
    raise SystemExit(f"MNIST is not in {ROOT / 'data'}: get it with `compare data fetch --data-dir data`")
