"""`headrace ingest` on a real broker: tables of topics, without a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

import headrace as hr
from headrace.cli.main import run
from headrace.model.names import TableName
from headrace.project.pipeline import Pipeline
from headrace.state.lease import Heart
from headrace.storage.layout import Storage

pytestmark = pytest.mark.usefixtures("spark")

Record = tuple[str | None, Mapping[str, Any] | bytes | None]


class Desk:
    """A folder without a pipeline, and the command line in it."""

    def __init__(self, folder: Path, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.bootstrap = bootstrap
        self._capsys = capsys
        self.more: list[str] = []

    def produce(self, topic: str, records: Sequence[Record], **settings: Any) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for key, value in records:
            text = json.dumps(value) if isinstance(value, Mapping) else value
            producer.produce(topic, text, key=key, **settings)
        assert producer.flush(30) == 0

    def ingest(self, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
        """The JSON lines of the command."""
        self._capsys.readouterr()
        assert run(["ingest", *arguments, "--json", *self.options]) == code, self._capsys.readouterr().out
        return [json.loads(line) for line in self._capsys.readouterr().out.splitlines()]

    def refused(self, *arguments: str, code: int = 2) -> dict[str, Any]:
        """The error of the command."""
        error: dict[str, Any] = self.ingest(*arguments, code=code)[-1]["error"]
        return error

    def text(self, *arguments: str) -> str:
        """The text output of the command, of both streams."""
        self._capsys.readouterr()
        assert run(["ingest", *arguments, *self.options]) == 0
        return "".join(self._capsys.readouterr())

    @property
    def options(self) -> list[str]:
        return ["--set", f"kafka.bootstrap.servers={self.bootstrap}", *self.more]

    def rows(self, topic: str, suffix: str = "") -> list[dict[str, Any]]:
        return rows_of(self.folder / "lake", topic, suffix)


def rows_of(storage: Path, topic: str, suffix: str = "") -> list[dict[str, Any]]:
    table = deltalake.DeltaTable(storage / "tables" / "default" / f"{table_of(topic)}{suffix}")
    found = deltalake.QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()
    return pa.table(found).to_pylist()


def table_of(topic: str) -> str:
    return topic.replace("-", "_").replace(".", "_")


@pytest.fixture
def desk(
    tmp_path: Path, bootstrap: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Desk:
    monkeypatch.chdir(tmp_path)
    return Desk(tmp_path, bootstrap, capsys)


def test_a_topic_becomes_a_table_which_a_saved_pipeline_continues_exactly_once(
    desk: Desk, topic: Callable[..., str]
) -> None:
    name = topic(partitions=2)
    desk.produce(name, [(f"k{n}", {"id": n, "city": "Bern"}) for n in range(50)])
    desk.produce(name, [("k1", None), (None, b"{broken")])
    shown = desk.text(name)
    assert f"{name} -> table {table_of(name)}, append" in shown
    assert "id LONG, city STRING" in shown
    rows = desk.rows(name)
    assert sorted(row["id"] for row in rows if row["id"] is not None) == list(range(50))
    assert {row["kafka_key"] for row in rows} == {f"k{n}" for n in range(50)}
    assert list(rows[0]) == [
        *("id", "city", "kafka_key", "kafka_topic", "kafka_partition", "kafka_offset", "kafka_ts")
    ]

    # The options and the schema are kept; a run without new records is fine.
    desk.produce(name, [("k50", {"id": 50, "city": "Basel"})])
    events = desk.ingest(name)
    assert events[0]["ingest"]["inferred"] is None
    assert [flow["rows"] for flow in events[-1]["result"]["flows"]] == [1]

    saved = desk.folder / "saved"
    assert run(["ingest", name, "--save", str(saved), *desk.options]) == 0
    assert desk.refused(name, "--save", str(saved))["code"] == "FILE_EXISTS"
    desk.produce(name, [("k51", {"id": 51, "city": "Chur"})])
    with Pipeline.load(saved) as pipeline:
        assert [flow.rows for flow in pipeline.run().flows] == [1]
        assert sorted(row["id"] for row in desk.rows(name) if row["id"] is not None) == list(range(52))
        proof = pipeline.verify(require="records")
        assert proof.proven
    # And back again.
    desk.produce(name, [("k52", {"id": 52, "city": "Davos"})])
    desk.ingest(name)
    assert sorted(row["id"] for row in desk.rows(name) if row["id"] is not None) == list(range(53))


def test_an_upsert_keeps_the_newest_record_of_each_key_and_a_tombstone_deletes(
    desk: Desk, topic: Callable[..., str]
) -> None:
    name = topic()
    old, new = 1_700_000_000_000, 1_700_000_001_000
    desk.produce(name, [("a", {"city": "Bern"}), ("b", {"city": "Chur"})], timestamp=new)
    # It comes later, and is older.
    desk.produce(name, [("a", {"city": "Basel"})], timestamp=old)
    desk.produce(name, [("c", {"city": "Davos"}), (None, {"city": "nowhere"})], timestamp=new)
    desk.ingest(name, "--mode", "upsert", "--partition-by", "city", "--keep-raw")
    assert {row["kafka_key"]: row["city"] for row in desk.rows(name)} == {
        "a": "Bern",
        "b": "Chur",
        "c": "Davos",
    }
    assert [row["value"] for row in desk.rows(name, "_raw")][-1] == b'{"city": "nowhere"}'

    # Equal timestamps are ordered by the offset. A row moves to another partition.
    desk.produce(name, [("a", {"city": "Chur"}), ("b", None)], timestamp=new)
    desk.ingest(name)
    assert {row["kafka_key"]: row["city"] for row in desk.rows(name)} == {"a": "Chur", "c": "Davos"}
    with Pipeline.load(desk.folder / "lake" / "ingest") as pipeline:
        assert pipeline.verify().proven
        assert [one.states for one in pipeline.quarantine.list()] == [{"quarantined": 1}]


def test_a_tombstone_deletes_by_keys_of_the_payload(desk: Desk, topic: Callable[..., str]) -> None:
    name = topic()
    rows = [{"id": n, "region": "eu", "v": f"v{n}", "at": f"2026-01-0{n}T00:00:00Z"} for n in (1, 2, 3, 4)]
    desk.produce(name, [(json.dumps({"id": row["id"], "region": "eu"}), row) for row in rows])
    desk.ingest(name, "--mode", "upsert", "--keys", "id,region", "--sequence-by", "at")
    desk.produce(name, [(json.dumps({"id": 2, "region": "eu"}), None), ("7", None), (None, {"id": 9})])
    desk.produce(name, [("x", {"id": 4, "region": "eu", "v": "late", "at": "2025-01-01T00:00:00Z"})])
    desk.ingest(name)
    assert {row["id"]: row["v"] for row in desk.rows(name)} == {1: "v1", 3: "v3", 4: "v4"}

    single = topic()
    desk.produce(single, [("a", {"id": "a"}), ("b", {"id": "b"}), ('{"id": "c"}', {"id": "c"})])
    desk.ingest(single, "--mode", "upsert", "--keys", "id")
    desk.produce(single, [("a", None), ('{"id": "c"}', None), ('"b"', None), ('{"no": 1}', None)])
    desk.ingest(single)
    assert desk.rows(single) == []


def test_a_trial_writes_beside_the_table_and_publishes_no_group(
    desk: Desk, topic: Callable[..., str]
) -> None:
    name = topic()
    desk.produce(name, [("a", {"id": 1}), ("a", {"id": 2})])
    assert "2 rows of" in desk.text(name, "--trial")
    # Each trial reads everything, with its own options.
    events = desk.ingest(name, "--trial", "--mode", "upsert")
    assert [row["id"] for row in events[-1]["rows"]["rows"]] == [2]
    assert not (desk.folder / "lake" / "tables" / "default" / table_of(name)).exists()
    groups = AdminClient({"bootstrap.servers": desk.bootstrap}).list_consumer_groups().result(120).valid
    assert not [one.group_id for one in groups if table_of(name) in one.group_id]
    desk.ingest(name)
    assert [row["id"] for row in desk.rows(name)] == [1, 2]


def test_every_wrong_input_is_refused_before_anything_is_written(
    desk: Desk, topic: Callable[..., str]
) -> None:
    name, empty = topic(), topic()
    error = desk.refused(f"{name}x")
    assert (error["code"], error["remedies"]) == ("TOPIC_NOT_FOUND", [f"did you mean `{name}`?"])
    assert desk.refused(empty)["code"] == "SCHEMA_NOT_INFERRED"
    desk.produce(name, [(None, {"id": 1, "city": "Bern"})])
    assert "have no key" in desk.refused(name, "--mode", "upsert")["summary"]
    error = desk.refused(name, "--mode", "upsert", "--keys", "idd")
    assert (error["code"], error["remedies"]) == ("COLUMN_NOT_FOUND", ["did you mean `id`?"])
    assert "--mode" in desk.refused(name, "--keys", "id")["summary"]
    assert desk.refused()["code"] == desk.refused(name, "--topics", ".*")["code"] == "COMMAND_LINE"
    assert desk.refused("--topics", "[")["code"] == "COMMAND_LINE"
    assert desk.refused("--topics", "no-such-.*")["code"] == "TOPIC_NOT_FOUND"
    assert desk.refused(name, "--table", "a b")["code"] == "COMMAND_LINE"
    assert desk.refused(name, "--schema", "missing.ddl")["code"] == "COMMAND_LINE"
    assert not (desk.folder / "lake").exists()

    desk.ingest(name)
    error = desk.refused(name, "--mode", "upsert", "--keys", "id")
    assert (error["code"], error["params"]["options"]) == ("INGEST_CHANGED", ["mode", "keys"])
    (desk.folder / "lake" / "ingest" / f"{table_of(name)}.json").unlink()
    assert desk.refused(name)["code"] == "INGEST_TABLE_TAKEN"
    assert [row["id"] for row in desk.rows(name)] == [1]


def test_changes_of_debezium_become_the_rows_of_the_database(desk: Desk, topic: Callable[..., str]) -> None:
    name = topic()
    columns = [
        {"field": "id", "type": "int32"},
        {"field": "at", "type": "int64", "name": "io.debezium.time.MicroTimestamp"},
        {
            "field": "amount",
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2", "connect.decimal.precision": "12"},
        },
    ]
    schema = {"fields": [{"field": "before", "fields": columns}, {"field": "after", "fields": columns}]}

    def change(op: str, lsn: int, **images: Any) -> Record:
        source = {"connector": "postgresql", "lsn": lsn, "sequence": json.dumps([str(lsn), str(lsn)])}
        row = images.get("after") or images["before"]
        payload = {"before": None, "after": None, "op": op, "source": source, **images}
        key = json.dumps({"schema": {"type": "struct"}, "payload": {"id": row["id"]}})
        return key, {"schema": schema, "payload": payload}

    first = {"id": 1, "at": 1_767_225_600_000_000, "amount": "BNI="}
    desk.produce(name, [change("c", 1, after=first), change("u", 3, after={**first, "amount": "BNM="})])
    desk.produce(name, [change("c", 2, after={**first, "id": 2})])
    events = desk.ingest(name, "--mode", "cdc")
    assert events[0]["ingest"]["inferred"]["ddl"] == "id LONG, at TIMESTAMP, amount DECIMAL(12, 2)"
    assert events[0]["ingest"]["keys"] == ["id"]
    assert {row["id"]: str(row["amount"]) for row in desk.rows(name)} == {1: "12.35", 2: "12.34"}
    deleted = change("d", 4, before={**first, "id": 2})
    desk.produce(name, [deleted, (deleted[0], None)])
    desk.ingest(name)
    assert [row["id"] for row in desk.rows(name)] == [1]
    (other,) = [topic()]
    desk.produce(other, [("1", change("c", 1, after=first)[1])])
    assert "not a JSON object" in desk.refused(other, "--mode", "cdc")["summary"]


def test_many_topics_run_in_one_application(desk: Desk, topic: Callable[..., str]) -> None:
    names = [topic(), topic(), topic()]
    for number, name in enumerate(names[:2]):
        desk.produce(name, [("a", {"id": number})])
    # The third one has no records, and so no schema.
    pattern = f"{names[0].rpartition('-')[0]}-.*"
    events = desk.ingest("--topics", pattern, code=1)
    assert [one["error"]["code"] for one in events if "error" in one] == ["SCHEMA_NOT_INFERRED"]
    assert sorted(flow["rows"] for flow in events[-1]["result"]["flows"]) == [1, 1]
    assert [desk.rows(name)[0]["id"] for name in names[:2]] == [0, 1]
    assert desk.refused("--topics", pattern, "--table", "same")["code"] == "COMMAND_LINE"


def test_the_kept_schema_takes_up_new_fields_on_request_and_can_be_given(
    desk: Desk, topic: Callable[..., str]
) -> None:
    name = topic()
    desk.produce(name, [("a", {"id": 1})])
    desk.ingest(name)
    desk.produce(name, [("b", {"id": 2, "paid": True})])
    desk.ingest(name)
    desk.produce(name, [("c", {"id": 3, "paid": True})])
    changes = desk.ingest(name, "--update-schema")[0]["ingest"]["inferred"]["changes"]
    assert changes == [{"field": "paid", "before": None, "after": "BOOLEAN"}]
    assert {row["id"]: row["paid"] for row in desk.rows(name)} == {1: None, 2: None, 3: True}

    given = topic()
    (desk.folder / "given.ddl").write_text("id INT, at TIMESTAMP\n")
    desk.ingest(given, "--schema", "given.ddl", "--mode", "upsert", "--keys", "id", "--sequence-by", "at")
    desk.produce(given, [("1", {"id": 1, "at": "2026-01-01T00:00:00Z"})])
    desk.ingest(given)
    desk.produce(given, [("1", None)])
    result = hr.ingest(given, overrides={"kafka.bootstrap.servers": desk.bootstrap})
    assert (result.topic.mode, result.columns) == ("upsert", {"id": "INT", "at": "TIMESTAMP"})
    assert [(flow.rows, flow.error) for flow in result.update.flows] == [(1, None)]
    assert all(care.steps == () for care in result.maintenance)
    assert desk.rows(given) == []


def _keep_no_old_files(spark: SparkSession, desk: Desk, topic: str) -> None:
    spark.sql(
        f"ALTER TABLE delta.`{desk.folder}/lake/tables/default/{table_of(topic)}` "
        "SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 0 seconds')"
    )


DOWNSTREAM = """
import headrace as hr
from headrace import spark

@hr.table
def downstream_{table}():
    return spark.readStream.table("{table}").select("id")
"""


def test_once_ends_with_compaction_and_vacuum_which_readers_and_proof_do_not_notice(
    desk: Desk, topic: Callable[..., str], spark: SparkSession
) -> None:
    name = topic(partitions=2)
    table = table_of(name)
    desk.more = ["--set", "maintenance.small_files=2", "--set", "maintenance.auto=false"]

    def produce(*ids: int) -> None:
        desk.produce(name, [(f"k{n}", {"id": n}) for n in ids])

    def maintained(*arguments: str) -> dict[str, Any]:
        (found,) = [one["maintenance"] for one in desk.ingest(name, *arguments) if "maintenance" in one]
        return dict(found)

    reader = desk.folder / "reader"
    reader.mkdir()
    (reader / "headrace.yml").write_text(
        "name: reader\nstorage: ../lake\nlibraries: [{glob: {include: '*.py'}}]\n"
    )
    (reader / "code.py").write_text(DOWNSTREAM.format(table=table))
    produce(*range(20))
    assert maintained("--no-optimize")["steps"] == []
    produce(*range(20, 40))
    desk.ingest(name, "--no-optimize", "--no-vacuum")
    downstream = Pipeline.load(reader)
    assert [flow.rows for flow in downstream.run().flows] == [40]

    produce(40)
    found = maintained()
    assert (found["steps"], found["warning"]) == (["optimize"], None)
    assert found["before"]["files"] >= 3 > found["after"]["files"] == 1
    assert found["after"]["stored_files"] > found["before"]["files"]
    # The stream reads the new row, and not those that were written again.
    assert [flow.rows for flow in downstream.run().flows] == [1]

    _keep_no_old_files(spark, desk, name)
    produce(41)
    desk.more[1] = "maintenance.small_files=1"
    found = maintained()
    # The file of the new row was written again, and the stream has not read it yet.
    assert found["steps"] == ["optimize", "vacuum"] and found["warning"] is None
    assert found["after"]["stored_files"] > found["after"]["files"] == 1
    assert [flow.rows for flow in downstream.run().flows] == [1]
    with Pipeline.load(desk.folder / "lake" / "ingest") as pipeline:
        (heart := Heart()).acquire(
            Storage.at(desk.folder / "lake").lease(TableName("default", table), table), table
        )
        assert "another process runs flow" in str(pipeline.maintain([table])[0].warning)
        heart.stop()
        (done,) = pipeline.maintain([table])
        assert done.steps == ("vacuum",) and done.after is not None
        # A restart of the stream plans its last batch again from the log, and reads none of the old files.
        assert done.after.vacuum.holders == ()
        assert done.after.stored_files == done.after.files
        assert f"{table}  vacuumed: " in next(done.lines())
        produce(42)
        assert [flow.rows for flow in pipeline.run().flows] == [1]
        proof = pipeline.verify([table], require="records")
        assert proof.proven, proof
        events = pipeline.events(level="warn")
        assert not events
    assert [flow.rows for flow in downstream.run().flows] == [1]
    assert downstream.verify([f"downstream_{table}"]).proven
    downstream.close()


def steps_of_table(events: list[dict[str, Any]]) -> list[list[str]]:
    """What maintenance did to the table itself, for each event about it."""
    found = [one["maintenance"] for one in events if "maintenance" in one]
    return [one["steps"] for one in found if one["part"] == "table"]


def test_compaction_and_vacuum_keep_the_keys_of_an_upserted_table(
    desk: Desk, topic: Callable[..., str], spark: SparkSession
) -> None:
    name = topic()
    desk.more = ["--set", "maintenance.small_files=1", "--set", "maintenance.auto=false"]
    desk.produce(name, [(f"k{n}", {"id": n}) for n in range(20)])
    desk.ingest(name, "--mode", "upsert", "--no-optimize")
    desk.produce(name, [("k1", {"id": 100}), ("k2", None)])
    events = desk.ingest(name)
    assert steps_of_table(events) == [["optimize"]]
    _keep_no_old_files(spark, desk, name)
    desk.produce(name, [("k1", {"id": 101}), ("k3", None), ("k11", {"id": 11})])
    events = desk.ingest(name)
    assert steps_of_table(events) == [["optimize", "vacuum"]]
    desk.produce(name, [("k1", {"id": 102}), ("k4", None)])
    desk.ingest(name, "--no-optimize")
    assert sorted(row["id"] for row in desk.rows(name)) == [0, *range(5, 20), 102]
    with Pipeline.load(desk.folder / "lake" / "ingest") as pipeline:
        assert pipeline.verify(sample=20).proven
