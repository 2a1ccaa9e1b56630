"""`headrace quarantine`: what it prints; no JVM."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lake import HandFlow, Lake
from rejected_rows import rejected, write_rejected

from headrace.errors import QuarantineChangedError
from headrace.project.quarantine import Quarantine
from headrace.sinks.delta.commit import discard_rows
from headrace.storage.layout import Storage, locate

Call = Callable[..., Any]

SPEC = "name: shop\nstorage: ./lake\nkafka:\n  bootstrap.servers: 127.0.0.1:9\n"


@pytest.fixture
def flow(tmp_path: Path) -> HandFlow:
    (tmp_path / "headrace.yml").write_text(SPEC)
    return Lake(tmp_path / "lake").table("orders").flow()


def reason(name: str | None, kind: str = "expectation", message: str | None = None) -> dict[str, Any]:
    return {"kind": kind, "name": name, "message": message}


def shown(headrace: Call, *options: str) -> list[int]:
    """The offsets of the rows that `show` gives."""
    rows = headrace("quarantine", "show", "orders", "--json", *options).data["rows"]
    return [row["source"]["offset"] for row in rows]


class TestList:
    def test_without_rejected_rows(self, flow: HandFlow, headrace: Call) -> None:
        assert headrace("quarantine", "list").out == "No row was rejected.\n"
        assert headrace("quarantine", "list", "orders").out == "orders  no rejected rows\n"

    def test_an_unknown_dataset_is_refused(self, flow: HandFlow, headrace: Call) -> None:
        called = headrace("quarantine", "list", "order")
        assert called.exit_code == 2
        assert "TABLE_UNKNOWN" in called.err and "did you mean `orders`?" in called.err

    def test_rows_by_state_flow_and_reason(self, flow: HandFlow, headrace: Call) -> None:
        flow.append({0: (0, 10)})
        several = [reason("small"), reason("it's odd")]
        write_rejected(
            flow,
            [
                rejected(flow, 10),
                rejected(flow, 11, reasons=several),
                rejected(flow, 12, reasons=[reason("malformed", "record", "at line 1")]),
                rejected(flow, 13, state="discarded"),
                rejected(flow, 14, batch=1),
            ],
        )
        lines = [line.rstrip() for line in headrace("quarantine", "list").out.splitlines()]
        assert lines == [
            "orders  1 pending, 3 quarantined, 1 discarded",
            "  flow    orders             4",
            "  reason  small              3",
            "  reason  it's odd           1",
            "  reason  record: malformed  1",
            "  rejected from 2026-11-22 08:10:00 to 2026-11-22 08:14:00 UTC",
        ]
        (found,) = headrace("quarantine", "list", "orders", "--json").data["datasets"]
        assert found["rows"] == {
            "pending": 1,
            "quarantined": 3,
            "replaying": 0,
            "replayed": 0,
            "discarded": 1,
        }
        assert found["reasons"][0] == {"reason": "small", "rows": 3}


class TestShow:
    @pytest.fixture(autouse=True)
    def _rows(self, flow: HandFlow) -> None:
        flow.append({0: (0, 10)})
        rows = [rejected(flow, offset) for offset in (12, 11, 10)]
        broken = {"reasons": [reason("malformed", "record", "no value follows")], "row": None}
        rows[0] |= broken | {"source": rows[0]["source"] | {"value": b'{"id": \xff'}}
        write_rejected(flow, [*rows, rejected(flow, 13, state="replayed"), rejected(flow, 14, batch=1)])

    def test_only_the_text_of_rows_from_tables_and_files_needs_a_look_at_tables(
        self, headrace: Call, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Storage, "find_tables", lambda _: pytest.fail("no row has a path"))
        assert "orders-10" in headrace("quarantine", "show", "orders").out
        monkeypatch.setattr(Quarantine, "binary_columns", lambda *_: pytest.fail("JSON needs no types"))
        assert headrace("quarantine", "show", "orders", "--json").exit_code == 0

    def test_the_oldest_rows_come_first_with_reasons_and_records(self, headrace: Call) -> None:
        assert headrace("quarantine", "show", "orders", "--limit", "3").out.splitlines() == [
            "orders-10  quarantined  sales/0 offset 10  flow orders  2026-11-22 08:10:00",
            "  small",
            '  {"id": 10}',
            "orders-11  quarantined  sales/0 offset 11  flow orders  2026-11-22 08:11:00",
            "  small",
            '  {"id": 11}',
            "orders-12  quarantined  sales/0 offset 12  flow orders  2026-11-22 08:12:00",
            "  record: malformed: no value follows",
            '  {"id": \\xff',
            "3 rows of orders; use --limit to see more",
        ]

    def test_the_bytes_of_a_record_in_a_row_are_text(self, flow: HandFlow, headrace: Call) -> None:
        raw = flow.table.storage.root / "tables" / "default" / "raw"
        deltalake.write_deltalake(raw, pa.table({"value": [b"x"], "name": ["x"]}))
        encoded = base64.b64encode(b'{"id": 15}').decode()
        row = f'{{"value":"{encoded}","name":"{encoded}","n":1.00}}'
        # A row that the query returned, and a row of the table that it read.
        read = {"offset": 1, "path": f"file:{raw}/part-0.parquet", "value": row.encode()}
        source = dict.fromkeys(("topic", "partition", "timestamp", "key", "headers"), None) | read
        write_rejected(flow, [rejected(flow, 15, row=row), rejected(flow, 16, row=None, source=source)])
        ids = ("--id", "orders-15", "--id", "orders-16")
        lines = headrace("quarantine", "show", "orders", *ids).out.splitlines()
        assert [lines[2], lines[5]] == [rf'  {{"value":"{{\"id\": 15}}","name":"{encoded}","n":1.00}}'] * 2

    @pytest.mark.parametrize(
        ("options", "offsets"),
        [
            (["--reason", "small"], [10, 11, 13, 14]),
            (["--reason", "record"], [12]),
            (["--reason", "it's"], []),
            (["--state", "pending"], [14]),
            (["--state", "quarantined", "--state", "replayed"], [10, 11, 12, 13]),
            (["--flow", "another"], []),
            (["--id", "orders-11", "--id", "orders-13"], [11, 13]),
            (["--where", "source['offset'] > 11 AND state = 'quarantined'"], [12]),
        ],
    )
    def test_options_choose_rows(self, options: list[str], offsets: list[int], headrace: Call) -> None:
        assert shown(headrace, *options) == offsets

    def test_a_wrong_condition_is_refused(self, headrace: Call) -> None:
        called = headrace("quarantine", "show", "orders", "--where", "offsett > 1")
        assert called.exit_code == 2
        assert "READ_COLUMN_UNKNOWN" in called.err

    def test_export_writes_all_columns(self, tmp_path: Path, headrace: Call) -> None:
        called = headrace("quarantine", "export", "orders", "bad.parquet", "--state", "quarantined")
        assert called.exit_code == 0
        table = pq.read_table(tmp_path / "bad.parquet")
        assert table.column("id").to_pylist() == ["orders-10", "orders-11", "orders-12"]
        assert "source" in table.column_names
        assert headrace("quarantine", "export", "orders", "bad.jsonl").exit_code == 0
        lines = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
        assert [line["id"] for line in lines] == [f"orders-{n}" for n in range(10, 15)]

    def test_export_writes_records_for_produce(self, flow: HandFlow, tmp_path: Path, headrace: Call) -> None:
        pretty = {"source": None, "row": '{\n"id": 20}'}
        tombstone = {"source": None, "row": None}
        write_rejected(flow, [rejected(flow, 20, **pretty), rejected(flow, 21, **tombstone)])
        called = headrace("quarantine", "export", "orders", "bad.jsonl", "--records")
        assert (
            called.out
            == f"Wrote 5 rows to {tmp_path / 'bad.jsonl'}; 2 rows skipped: empty, or not valid UTF-8\n"
        )
        lines = (tmp_path / "bad.jsonl").read_text().splitlines()
        assert lines == ['{"id": 10}', '{"id": 11}', '{"id": 13}', '{"id": 14}', '{ "id": 20}']

    def test_another_kind_of_file_is_refused(self, headrace: Call) -> None:
        called = headrace("quarantine", "export", "orders", "bad.csv")
        assert called.exit_code == 2
        assert "must end in .jsonl or .parquet" in called.err


def test_rows_of_an_interrupted_replay_are_shown_by_what_the_table_holds(
    flow: HandFlow, headrace: Call
) -> None:
    flow.append({0: (0, 10)})
    flow.table.commit([{"txn": {"appId": "done", "version": 0}}])
    rows = [rejected(flow, n, state="replaying", replay=name) for n, name in ((10, "done"), (11, "open"))]
    write_rejected(flow, rows)
    assert shown(headrace, "--state", "replayed") == [10]
    assert shown(headrace, "--state", "replaying") == [11]


class TestDiscard:
    @pytest.fixture(autouse=True)
    def _rows(self, flow: HandFlow) -> None:
        flow.append({0: (0, 10)})
        write_rejected(flow, [rejected(flow, 10), rejected(flow, 11, reasons=[reason("odd")])])
        write_rejected(flow, [rejected(flow, 12), rejected(flow, 13, batch=1)])

    def test_it_shows_first_what_it_would_do(self, headrace: Call) -> None:
        called = headrace("quarantine", "discard", "orders")
        assert called.exit_code == 2
        assert "NOT_CONFIRMED" in called.err
        assert called.err.splitlines()[:2] == [
            "orders  3 rows of flow orders",
            "orders  1 row pending: the next run repeats their batch first",
        ]
        assert shown(headrace, "--state", "discarded") == []

    def test_chosen_rows_are_discarded_once(self, headrace: Call) -> None:
        called = headrace("quarantine", "discard", "orders", "--reason", "small", "--yes")
        assert (called.exit_code, called.out) == (0, "Discarded 2 rows of orders.\n")
        assert shown(headrace, "--state", "discarded") == [10, 12]
        assert shown(headrace, "--state", "quarantined") == [11]
        assert shown(headrace, "--state", "pending") == [13]
        again = headrace("quarantine", "discard", "orders", "--reason", "small", "--yes")
        assert (again.exit_code, again.out) == (0, "No quarantined row matches.\n")
        events = [json.loads(line) for line in headrace("events", "--json").out.splitlines()]
        assert [one["details"] for one in events if one["details"]["status"] == "COMPLETED"] == [
            {"type": "QUARANTINE_DISCARD", "status": "COMPLETED", "discarded": 2, "duration_ms": ANY}
        ]
        assert {(one["event_type"], one["dataset"]) for one in events} == {
            ("operation_progress", "default.orders")
        }

    def test_other_columns_are_kept(self, headrace: Call) -> None:
        def rows() -> list[dict[str, Any]]:
            found = headrace("quarantine", "show", "orders", "--id", "orders-10", "--json").data["rows"]
            return [{k: v for k, v in row.items() if k not in ("state", "changed_at")} for row in found]

        before = rows()
        headrace("quarantine", "discard", "orders", "--yes")
        assert rows() == before

    def test_rows_that_another_process_changes_meanwhile_are_left(self, flow: HandFlow) -> None:
        folder = flow.table.storage.root / "quarantine" / "default" / "orders"
        discard_rows(locate(folder), pa.table({"id": ["orders-10"]}))
        with pytest.raises(QuarantineChangedError) as refused:
            discard_rows(locate(folder), pa.table({"id": ["orders-10", "orders-11"]}))
        assert refused.value.params["rows"] == 1
