"""Compare the skipped tests of JUnit reports with the permitted ones.

CI fails on every skip that ``.ci/permitted-skips`` does not name with its reason. It also fails on a
report in which no test ran.

Usage: python tests/check_skips.py PERMITTED REPORT.xml [REPORT.xml ...]
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET


@dataclass(frozen=True)
class Skip:
    """A test that did not run, or an expected failure."""

    test: str
    reason: str


@dataclass(frozen=True)
class Permit:
    """A line of the list.

    One pattern matches the whole test id, the other a part of the reason.
    """

    test: re.Pattern[str]
    reason: re.Pattern[str]
    line: int

    def covers(self, skip: Skip) -> bool:
        return bool(self.test.fullmatch(skip.test) and self.reason.search(skip.reason))


def read_permits(path: Path) -> list[Permit]:
    permits = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        test, separator, reason = line.partition(" : ")
        if not separator or not test.strip() or not reason.strip():
            raise SystemExit(f"{path}:{number}: expected '<test regex> : <reason regex>', found {line!r}")
        try:
            permits.append(Permit(re.compile(test.strip()), re.compile(reason.strip()), number))
        except re.error as error:
            raise SystemExit(f"{path}:{number}: not a regular expression: {error}") from error
    return permits


def read_report(path: Path) -> tuple[int, list[Skip]]:
    """Return how many tests ran, and which tests were skipped."""
    ran, skips = 0, []
    for case in ET.parse(path).iter("testcase"):
        skipped = case.find("skipped")
        if skipped is None:
            ran += 1
        else:
            test = ".".join(part for part in (case.get("classname"), case.get("name")) if part)
            skips.append(
                Skip(test, skipped.get("message") or (skipped.text or "").strip() or "no reason given")
            )
    return ran, skips


def main(arguments: list[str]) -> int:
    if len(arguments) < 1:
        raise SystemExit(__doc__)
    permitted, reports = Path(arguments[0]), [Path(name) for name in arguments[1:]]
    permits = read_permits(permitted)
    if not reports:
        print("Skips: no report was given. Perhaps no test ran.")
        return 1
    failed = False
    used: set[int] = set()
    for report in reports:
        ran, skips = read_report(report)
        print(f"Skips: {report}: {ran} ran, {len(skips)} skipped")
        if ran == 0:
            print("  FAILED: nothing ran")
            failed = True
        for skip in skips:
            permit = next((permit for permit in permits if permit.covers(skip)), None)
            if permit:
                used.add(permit.line)
                print(f"  permitted by line {permit.line}: {skip.test}: {skip.reason}")
            else:
                print(f"  NOT PERMITTED: {skip.test}: {skip.reason}")
                failed = True
    for permit in permits:
        if permit.line not in used:
            # This is no failure: which tests are skipped depends on the machine.
            print(f"  not needed this time: {permitted}:{permit.line}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
