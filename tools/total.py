"""Adds up the closing lines of test runs: `python tools/total.py LOG..`.

Prints each closing line, and then "N passed, N failed, N skipped" on a line of its own. Exits with 1 if a
log has no closing line, if no test ran, or if a test failed.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

_COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")
_CLOSING = re.compile(r"^=*\s*(\d+ \w+(, \d+ \w+)*|no tests ran) in [\d.]+s\b.*$")


def find_closing_line(lines: Iterable[str]) -> str | None:
    """Returns the last line in which pytest counts its tests."""
    found = [line for line in lines if _CLOSING.match(line)]
    return found[-1].strip("= ") if found else None


def count(closing: str) -> Counter[str]:
    """Returns the number of tests by outcome; a test that could not be set up has failed."""
    counts: Counter[str] = Counter()
    for number, outcome in _COUNT.findall(closing):
        counts["failed" if outcome.startswith("error") else outcome] += int(number)
    return counts


def main(logs: Sequence[Path]) -> int:
    total: Counter[str] = Counter()
    lines = []
    complete = True
    for log in logs:
        closing = find_closing_line(log.read_text(errors="replace").splitlines())
        lines.append(f"{log.stem}: {closing or 'the run ended without a closing line'}")
        counts = count(closing or "")
        complete = complete and counts["passed"] > 0
        total += counts
    lines.append(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0 if complete and not total["failed"] else 1


if __name__ == "__main__":
    sys.exit(main([Path(name) for name in sys.argv[1:]]))
