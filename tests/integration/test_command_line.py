"""The command line on the real things: the example pipeline from `init` to a full refresh."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from headrace.cli.main import run
from headrace.cli.output import TextOutput
from headrace.run.schedule import execute
from headrace.runtime.broker import Broker
from headrace.runtime.places import is_locked

SALES = 400


@pytest.fixture
def pipeline(topic: Callable[..., str], bootstrap: str, tmp_path: Path) -> Path:
    """The example pipeline, on a topic of its own that holds sales."""
    folder = tmp_path / "shop"
    assert run(["init", str(folder)]) == 0
    name = topic(partitions=3)
    bronze = folder / "transformations" / "bronze.py"
    bronze.write_text(bronze.read_text().replace('read_kafka("sales")', f'read_kafka("{name}")'))
    produce(bootstrap, name, 0, SALES)
    (folder / "topic").write_text(name)
    return folder


def produce(bootstrap: str, topic: str, first: int, last: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(first, last):
        sale = {"id": number, "date": f"2026-01-{number % 3 + 1:02d}", "name": f"n{number % 2}", "sales": 0.1}
        producer.produce(topic, key=str(number), value=json.dumps(sale))
    assert producer.flush(30) == 0


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def gold(folder: Path) -> tuple[Decimal, int]:
    """The sum and the number of all sales, read without Spark."""
    from deltalake import DeltaTable

    rows = DeltaTable(str(folder / "lake" / "tables" / "default" / "gold")).to_pyarrow_table().to_pylist()
    return sum((row["sales"] for row in rows), Decimal(0)), sum(row["count"] for row in rows)


def check_terminal(width: int, project: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a terminal shows whole values in all reports."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    wanted = {
        "status": ("bronze", "behind", "up to date", str(SALES), "ago"),
        "status --tables": ("bronze", "silver", "gold", "files", "checkpoint", "none"),
        "quality": (),
        "events": ("METRICS", "'silver' has committed batch 0"),
        "verify": ("ranges", "counts", "records", "Proven"),
    }
    for command, words in wanted.items():
        out = Terminal()
        assert run([*command.split(), *project], TextOutput(stdout=out, stderr=io.StringIO())) == 0
        text = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
        plain = " ".join(text.split())
        assert [word for word in words if word not in plain] == [], text
        # Only a long word, such as a path, has no line break.
        long = [line for line in text.splitlines() if len(line) > width and " " in line.strip()]
        assert ("…" in text, long) == (False, []), text
    monkeypatch.delenv("COLUMNS")


def test_from_init_to_a_full_refresh(
    spark: SparkSession,
    pipeline: Path,
    bootstrap: str,
    broker: Broker,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = []

    def note_hold(*arguments: Any) -> Any:
        held.append(is_locked(broker.directory / "used"))
        return execute(*arguments)

    monkeypatch.setattr("headrace.run.schedule.execute", note_hold)
    default = ["--project", str(pipeline)]
    # The same folder as a URI, with an encoded character.
    project = [*default, "--storage", f"file://{pipeline}/l%61ke"]
    capsys.readouterr()

    assert run(["plan", "--json", *project]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [one["dataset"] for one in plan["datasets"]] == [
        "default.bronze",
        "default.silver",
        "default.gold",
    ]
    assert plan["datasets"][1]["flows"][0]["coordinates"]["offset"] == "offset"
    assert run(["plan", "--graph", "svg", *project]) == 0
    picture = ElementTree.fromstring(capsys.readouterr().out)
    texts = [one.text for one in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"bronze", "silver", "gold (view)"} < {*texts} and len(texts) == 4
    assert not (pipeline / "lake").exists(), "a plan writes nothing"

    assert run(["run", "--json", *project]) == 0
    *events, last = lines(capsys.readouterr().out)
    assert events[0]["event"] == "UpdateStarted"
    assert held == [True], "its broker does not end while it runs"
    assert last["result"]["outcome"] == "completed"
    assert {flow["flow"]: flow["rows"] for flow in last["result"]["flows"]} == {
        "bronze": SALES,
        "silver": SALES,
    }
    assert gold(pipeline) == (Decimal("40.00"), SALES)

    log = Path(last["result"]["log"])
    assert log.stem == last["result"]["update"]
    assert "BatchCommitted flow=bronze" in log.read_text()
    assert run(["status", "--json", *project]) == 0
    assert json.loads(capsys.readouterr().out)["log"] == str(log)
    limits = ["status", "--check", "--max-lag", "99", "--max-age", "1h", *project]
    assert run(limits) == 0
    assert capsys.readouterr().out == "No trouble in 3 datasets.\n"

    produce(bootstrap, (pipeline / "topic").read_text(), SALES, SALES + 100)
    assert run(limits) == 1
    assert capsys.readouterr().out == "bronze: 100 records behind (limit 99)\n"
    for width in (80, 120):
        check_terminal(width, project, monkeypatch)
    assert run(["run", "--log-format", "json", "--log-level", "debug", *project]) == 0
    text = capsys.readouterr().out
    newest = max(log.parent.glob("*.log"))
    logged = lines(newest.read_text())
    assert {"debug", "info"} <= {line["level"] for line in logged}
    assert [line["flow"] for line in logged if line["event"] == "BatchStarted"] == ["bronze", "silver"]
    assert "headrace.run" not in text, "what a person sees stays short"
    assert "bronze  up to date: 100 rows in 1 batch" in text
    assert "completed in" in text
    assert gold(pipeline) == (Decimal("50.00"), SALES + 100)

    assert run(["full-refresh", "bronze", *project]) == 2, "nobody is there to answer"
    shown = capsys.readouterr().err
    assert "silver  rebuilt too" in shown, shown
    assert re.search(rf"bronze  one commit removes all {SALES + 100:,} rows \([\d.]+ kB\)", shown), shown
    assert gold(pipeline) == (Decimal("50.00"), SALES + 100)

    assert run(["run", "--full-refresh", "bronze", "--json", *project]) == 0
    last = lines(capsys.readouterr().out)[-1]
    assert {flow["rows"] for flow in last["result"]["flows"]} == {SALES + 100}
    # Silver's query fails on a row of bronze, which has the coordinates of its record.
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce((pipeline / "topic").read_text(), value="not JSON")
    assert producer.flush(30) == 0
    assert run(["run", *default]) == 0
    assert gold(pipeline) == (Decimal("50.00"), SALES + 100)
    capsys.readouterr()
    assert run(["verify", *default]) == 0
    assert f"= {SALES + 100} in the table + 1 in quarantine" in capsys.readouterr().out
    assert run(["quarantine", "show", "silver", *default]) == 0
    assert '"value":"not JSON"' in capsys.readouterr().out


def test_the_test_that_init_writes_passes(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["init", str(tmp_path / "shop")]) == 0
    monkeypatch.chdir(tmp_path / "shop")

    class Outcomes:
        seen: ClassVar[list[str]] = []

        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.when == "call":
                self.seen.append(report.outcome)

    options = ["-q", "-p", "no:cacheprovider", "-p", "no:timeout", "--rootdir", ".", "-c", os.devnull]
    assert pytest.main([*options, "tests"], plugins=[Outcomes()]) == 0
    assert Outcomes.seen == ["passed"] * 2
