"""Compare the skipped tests of JUnit reports with the permitted ones.

CI fails on every skip that ``.ci/permitted-skips`` does not name with its reason. It also fails on a
report in which no test ran.

Usage: python tests/check_skips.py PERMITTED REPORT.xml [REPORT.xml ...]
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree as ET


def read_permits(path: Path) -> dict[int, tuple[str, str]]:
    """Return two patterns for each numbered line: of the whole test id, and of a part of the reason."""
    permits = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            test, reason = line.split(" : ", 1)
            permits[number] = test.strip(), reason.strip()
    return permits


def read_report(path: Path) -> tuple[int, dict[str, str]]:
    """Return how many tests ran, and the reason of each that was skipped."""
    ran, skips = 0, {}
    for case in ET.parse(path).iter("testcase"):
        skipped = case.find("skipped")
        if skipped is None:
            ran += 1
        else:
            test = ".".join(filter(None, (case.get("classname"), case.get("name"))))
            skips[test] = skipped.get("message") or skipped.text or ""
    return ran, skips


def main(permitted: Path, reports: list[Path]) -> int:
    """Print what was skipped in each report; return 1 if not all of it is permitted, or nothing ran."""
    permits, used = read_permits(permitted), set()
    failed = not reports
    if failed:
        print("Skips: no report was given. Perhaps no test ran.")
    for report in reports:
        ran, skips = read_report(report)
        failed |= not ran
        print(f"Skips: {report}: {ran or 'FAILED, none'} ran, {len(skips)} skipped")
        for test, why in skips.items():
            lines = [
                line
                for line, (tests, reasons) in permits.items()
                if re.fullmatch(tests, test) and re.search(reasons, why)
            ]
            failed |= not lines
            used.update(lines[:1])
            print(f"  {f'permitted by line {lines[0]}' if lines else 'NOT PERMITTED'}: {test}: {why}")
    for line in permits.keys() - used:
        # This is no failure: which tests are skipped depends on the machine.
        print(f"  not needed this time: {permitted}:{line}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]]))
