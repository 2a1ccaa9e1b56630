"""The end of the demo: as a person reads it, and as JSON."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace.project.demo.producer import ComparedRow, Comparison, Entry
from headrace.project.demo.story import DemoResult
from headrace.runtime.places import BROKER_VARIABLE

_SHOWN = 5
_MARKS = {"proven": "✓", "partial": "✓", "unjudged": "–", "refuted": "✗"}  # noqa: RUF001
_NOTHING = "(nothing)"


def closing_text(result: DemoResult) -> str:
    lines = [
        "",
        "Proof",
        *_proof_lines(result),
        "",
        *_gold_lines(result.comparison),
        "",
        *_reading_lines(result),
    ]
    if not result.ok:
        lines += ["", *(f"The demo failed: {reason}" for reason in result.faults)]
    return "\n".join(lines)


def closing_data(result: DemoResult) -> dict[str, Any]:
    ledger, comparison = result.producer.ledger, result.comparison
    return {
        "ok": result.ok,
        "faults": result.faults,
        "path": str(result.folder.path),
        "tables_path": str(result.settings.storage.tables),
        "broker_path": str(result.folder.broker),
        "records": ledger.records,
        "duration_s": round(result.duration_s, 2),
        "crashes": [{**asdict(one), "inside_batch": one.inside_batch} for one in result.crashes],
        "replay": result.replay,
        "up_to_date": result.drained,
        "rejected": result.rejected,
        "replayed": result.replayed,
        "proof": result.proof.to_json(),
        "gold": {
            "equal": comparison.equal,
            "rows": len(comparison.rows),
            "differences": [_row_data(row) for row in comparison.differences],
            "doubled": [list(key) for key in comparison.doubled],
            "sales": str(comparison.total),
            "ledger_sales": str(ledger.sales),
        },
    }


def _proof_lines(result: DemoResult) -> Iterator[str]:
    for dataset in result.proof.datasets:
        first = dataset.dataset.name
        # `headrace verify` also prints the grades that cannot be judged for this kind of flow.
        judged = (one for flow in dataset.flows for one in flow.grades if one.verdict != "unjudged")
        for report in judged:
            text = report.text + (f"; {'; '.join(report.reasons)}" if report.reasons else "")
            yield f" {first:<8} {report.grade:<8} {text}   {_MARKS[report.verdict]}"
            for finding in report.findings:
                yield f" {'':<8} {'':<8} {finding.text}"
            first = ""
    comparison, ledger = result.comparison, result.producer.ledger
    if comparison.equal:
        text = f"equal the sums of the producer ({ledger.dates} dates × {ledger.names} names, "  # noqa: RUF001
        yield f" {'gold':<8} {'sums':<8} {text}{comparison.total:,})   ✓"
    else:
        wrong = len(comparison.differences) + len(comparison.doubled)
        yield f" {'gold':<8} {'sums':<8} {wrong} rows differ from the sums of the producer   ✗"


def _gold_lines(comparison: Comparison) -> Iterator[str]:
    rows = [*comparison.differences, *(row for row in comparison.rows if row.equal)][:_SHOWN]
    yield f" {'date':<12} {'name':<14} {'gold':>12} {'producer':>12}"
    for row in rows:
        mark = "✓" if row.equal else "✗"
        yield f" {row.date:<12} {row.name:<14} {_money(row.gold):>12} {_money(row.ledger):>12}  {mark}"
    if len(comparison.rows) > len(rows):
        yield f" … and {len(comparison.rows) - len(rows):,} more, all compared"


def _reading_lines(result: DemoResult) -> Iterator[str]:
    settings = result.settings
    project = shlex.quote(_shown(result.folder.path))
    root, headrace = settings.storage.root, _command()
    yield f"Everything in {_shown(root.local_path) if root.is_local else root} is plain Delta:"
    if root.is_local:
        # Other programs find the credentials of a bucket in ways of their own.
        gold = _shown(settings.storage.table(result.gold).local_path)
        yield f"  duckdb -c \"SELECT * FROM delta_scan('{gold}') LIMIT 5\"   # the duckdb command"
        code = f"import polars; print(polars.read_delta('{gold}').head())"
        yield f'  python -c "{code}"   # pip install polars'
    yield f"  {headrace} read gold --limit 5 --project {project}"
    yield f"  {headrace} quarantine show silver --limit 5 --project {project}"
    yield "Run the pipeline again; this starts its broker, with the records of the demo:"
    if BROKER_VARIABLE in os.environ:
        # Otherwise the run would use the broker that the user has chosen.
        yield f"  unset {BROKER_VARIABLE}"
    yield f"  {headrace} run --project {project}"
    yield f"  {headrace} status --project {project}"
    yield f"  {headrace} broker stop --project {project}"
    yield "See it in a browser:"
    yield f"  {headrace} ui --project {project}"
    yield f"Next: {headrace} init my-pipeline"


def _command() -> str:
    """``headrace`` as a user types it here; with its path if its environment is not active."""
    own = Path(sys.executable).with_name("headrace")
    found = shutil.which("headrace")
    return "headrace" if (found and Path(found).samefile(own)) or not own.exists() else _shown(own)


def _shown(path: Path) -> str:
    """The path as a user types it here: relative if it is below the working directory."""
    return os.path.relpath(path) if path.absolute().is_relative_to(Path.cwd()) else str(path)


def _money(entry: Entry | None) -> str:
    return _NOTHING if entry is None else f"{entry.sales:,}"


def _row_data(row: ComparedRow) -> dict[str, Any]:
    def data(entry: Entry | None) -> dict[str, Any] | None:
        return None if entry is None else {"sales": str(entry.sales), "count": entry.count}

    return {"name": row.name, "date": row.date, "gold": data(row.gold), "ledger": data(row.ledger)}
