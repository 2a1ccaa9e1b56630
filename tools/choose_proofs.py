"""Chooses the proofs of a check: `python tools/choose_proofs.py` prints their files, separated by commas.

The proofs are in `PARTS` parts of about the same recorded seconds (`tests/seconds.json`). A check runs the
part that the number of commits modulo `PARTS` names, and of the other parts the proofs of the packages that
have changed in the seven days before the newest commit. A landing can have one commit or hundreds, so the
number of commits says nothing about the changes since a part was last chosen. If the changed ones take too
long, each check runs others of them. What was chosen, and why, is printed on standard error.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = 34
DAYS = 7
BUDGET_S = 420.0
"""Of one check, in summed seconds of tests. With the proofs of the guarantees, which each check runs beside
them and which take some 280 s, three processes on two cores need about seven and a half minutes."""

_UNKNOWN_S = 20.0

_LONG = (
    "auto_cdc auto_loader bad_records broker change_images changed_columns changes command_line "
    "database_tables dataset_checks dialects drift erase event_log examples files folding generations "
    "groups history history_in_order ingest kinesis library limits lost_commits metastore mistakes "
    "names_in_use narrowing new_kind noop_check object_storage other_platforms partial_changes "
    "partial_history quarantine readers recompute record_formats replay runs s3_writes secrets secured "
    "snapshots sql_files state_changes streams_of_changing_tables table_care targets testing "
    "topics_by_hand unused update verify_sample view_increments view_refreshes view_replacement"
)
LONG = frozenset(f"test_{name}.py" for name in _LONG.split())
"""Files of integration and behaviour tests that take long: they are proofs, too."""

PACKAGES: Mapping[str, tuple[str, ...]] = {
    "cli": ("command_line", "demo", "docs", "mistakes"),
    "contracts": ("bad_records", "dataset_checks", "drift", "quarantine"),
    "declare": ("dialects", "examples", "names_in_use", "other_platforms"),
    "increments": ("view_increments", "view_kills", "view_refreshes", "view_rounds", "view_type_rounds"),
    "maintain": ("care_beside_flows", "care_properties", "folding", "table_care"),
    "observe": ("event_log",),
    "plan": ("noop_check", "changed_columns", "readers", "state_changes"),
    "model": ("secrets",),
    "project": ("erase", "ingest", "library", "update", "upstream"),
    "run": (
        "first_start",
        "kill",
        "limits",
        "narrowing",
        "once",
        "replay",
        "stateful",
        "stop",
        "clock",
        "recompute",
        "unmounted",
        "unused",
        "view_replacement",
    ),
    "runtime": (
        "broker",
        "cluster",
        "engine",
        "engine_clients",
        "metastore",
        "orphan",
        "s3_cluster",
        "sessions",
    ),
    "shell": ("sql_shell",),
    "sinks": (
        *("auto_cdc", "change_images", "changed_columns", "changes", "history", "history_in_order"),
        *(
            "generations",
            "groups",
            "kafka_sink",
            "key_stores",
            "lost_commit",
            "large_vectors",
            "lost_commits",
            "partial_changes",
            "partial_history",
            "postgres",
            "sampled_sinks",
            "sink_store",
            "snapshots",
            "targets",
        ),
    ),
    "sources": (
        *(
            "auto_loader",
            "database_tables",
            "files",
            "folders",
            "headers",
            "kinesis",
            "new_kind",
            "record_formats",
            "recovery",
            "runs",
            "secured",
            "streams_of_changing_tables",
            "subscription",
            "topic",
            "topics_by_hand",
        ),
        "upstream",
    ),
    "state": (
        *(
            "two_drivers",
            "checkpoint",
            "checkpoint_repair",
            "driver",
            "folders",
            "interrupted_opening",
            "reset_offsets",
        ),
        "table",
    ),
    "storage": ("object_storage", "s3_faults", "s3_races", "s3_writes"),
    "syntax": ("sql_files",),
    "testing": ("testing",),
    "verify": ("new_kind", "reset_offsets", "table", "topic", "verify_sample"),
}
"""The names of the proofs that say most about a package of the source."""


@dataclass(frozen=True)
class Choice:
    """The proofs of one check: the files of its part, those of changed packages, and those left out."""

    part: int
    files: list[str]
    changed: list[str]
    left_out: list[str]


def find_proofs(tests: Path) -> list[str]:
    """Returns the files with proofs, relative to the folder of the tests."""
    found = [
        file
        for file in tests.rglob("test_*.py")
        if "unit" not in file.relative_to(tests).parts
        and (
            file.name in LONG
            or "proof" in file.relative_to(tests).parts
            or "mark.proof" in file.read_text(encoding="utf-8")
        )
    ]
    return sorted(file.relative_to(tests).as_posix() for file in found)


def split(files: Iterable[str], seconds: Mapping[str, float], parts: int = PARTS) -> list[list[str]]:
    """Returns the files in parts that take about the same time."""
    found: list[list[str]] = [[] for _ in range(parts)]
    lengths = [0.0] * parts
    for file in sorted(files, key=lambda file: (-seconds.get(file, _UNKNOWN_S), file)):
        shortest = lengths.index(min(lengths))
        found[shortest].append(file)
        lengths[shortest] += seconds.get(file, _UNKNOWN_S)
    return found


def is_touched(file: str, changes: Collection[str]) -> bool:
    """Tells whether changed files of the repository concern a file of proofs."""
    name = file.rpartition("/")[2].removeprefix("test_").removesuffix(".py")
    packages = {package for package, names in PACKAGES.items() if name in names}
    for change in changes:
        if change == f"tests/{file}" or (name == "docs" and change.endswith(".md")):
            return True
        if name == "examples" and change.startswith("examples/"):
            return True
        place = change.split("/")
        if place[:2] == ["src", "headrace"] and place[2] in packages:
            return True
    return False


def choose(
    files: Sequence[str], seconds: Mapping[str, float], commits: int, changes: Collection[str]
) -> Choice:
    """Chooses the proofs of a check.

    Args:
        files: All files with proofs.
        seconds: The recorded seconds of each file.
        commits: The number of commits of the history.
        changes: The files that have changed lately.
    """
    part = commits % PARTS
    chosen = split(files, seconds)[part]
    left_s = BUDGET_S - sum(seconds.get(file, _UNKNOWN_S) for file in chosen)
    touched = sorted(file for file in files if file not in chosen and is_touched(file, changes))
    # The order differs from check to check, so that the same proofs are not always left out.
    random.Random(commits).shuffle(touched)
    added, left_out = [], []
    for file in touched:
        length = seconds.get(file, _UNKNOWN_S)
        if length <= left_s:
            left_s -= length
            added.append(file)
        else:
            left_out.append(file)
    return Choice(part, chosen, added, left_out)


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _changes() -> set[str]:
    """Returns what has changed in the days before the newest commit, and what is not committed yet."""
    newest = int(_git("log", "-1", "--format=%ct") or 0)
    before = _git("rev-list", "-1", f"--before={newest - DAYS * 24 * 60 * 60}", "HEAD")
    # A younger history, or a shallow one, has changed as a whole.
    found = _git("diff", "--name-only", before) if before else _git("ls-files")
    return set((found or "").splitlines())


def main() -> None:
    tests = ROOT / "tests"
    seconds = json.loads((tests / "seconds.json").read_text(encoding="utf-8"))
    choice = choose(find_proofs(tests), seconds, int(_git("rev-list", "--count", "HEAD") or 0), _changes())
    texts = [
        f"proofs: part {choice.part + 1} of {PARTS}: {' '.join(choice.files)}",
        f"proofs of packages that have changed: {' '.join(choice.changed) or 'no others'}",
    ]
    if choice.left_out:
        texts.append(f"left to `make prove`, for the time: {' '.join(choice.left_out)}")
    sys.stderr.write("\n".join(texts) + "\n")
    sys.stdout.write(",".join([*choice.files, *choice.changed]) + "\n")


if __name__ == "__main__":
    main()
