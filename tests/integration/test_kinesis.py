"""Kinesis streams: rows, options, errors, the plan, the status, bad records, drift, SQL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.cli.main import run as headrace
from headrace.contracts.rejected import COLUMNS
from headrace.observe.quarantine import RowFilter
from headrace.plan.explain import Explanation
from headrace.project.pipeline import Pipeline
from headrace.testing import Record, run as run_tested
from kinesis_server import FAULTS, LOGIN, KinesisServer, aggregate
from stream_site import StreamSite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")

RAW = """
import headrace as hr

@hr.table
def clicks():
    return hr.read_kinesis("STREAM"{more})
"""


STATEFUL = """
import headrace as hr

@hr.table
def clicks():
    rows = hr.read_kinesis("STREAM", format="json", schema="id LONG"{more})
    return rows.dropDuplicates(["id"]).select("id")
"""


TWO = """
import json
import headrace as hr

coordinates = json.dumps({name: f"_source.{name}" for name in ("stream", "shard", "record_number")})

@hr.table(table_properties={"headrace.coordinates": coordinates})
def clicks():
    one, two = (hr.read_kinesis(name, format="text") for name in ("STREAM", "STREAM_more"))
    return one.union(two)
"""


TWICE = """
import headrace as hr

@hr.table
def clicks():
    rows = hr.read_kinesis("STREAM", format="json", schema="id LONG")
    return rows.union(rows.selectExpr("id + 1000 AS id", "_source"))
"""


@pytest.fixture
def site(tmp_path: Path, kinesis_server: KinesisServer) -> StreamSite:
    return StreamSite(tmp_path / "site", kinesis_server)


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    FAULTS.end()


def test_raw_records_have_their_coordinates_and_aggregates_are_taken_apart(site: StreamSite) -> None:
    site.write(RAW)
    packed = aggregate([("x", b"one"), ("y", b""), ("x", b"\xff\x00")])
    broken = packed[:-1] + bytes([packed[-1] ^ 1])
    site.server.put(site.stream, ("a", b"plain"), ("b", packed), ("c", broken))
    site.run_well()
    rows = site.rows()
    assert sorted((row["partition_key"], row["sub_sequence_number"], row["data"]) for row in rows) == [
        ("a", 0, b"plain"),
        ("c", 0, broken),
        ("x", 0, b"one"),
        ("x", 2, b"\xff\x00"),
        ("y", 1, b""),
    ]
    assert {row["stream"] for row in rows} == {site.stream}
    assert all(row["shard_id"] == f"shardId-{row['shard']:012d}" for row in rows)
    for shard in {row["shard"] for row in rows}:
        mine = [row for row in rows if row["shard"] == shard]
        assert sorted(row["record_number"] for row in mine) == list(range(len(mine)))
    assert all(len(row["sequence_number"]) == 56 for row in rows)
    assert site.verdicts() == {"ranges": "proven", "counts": "proven", "records": "proven"}


def test_bad_records_are_kept_with_their_coordinates_and_are_replayed(site: StreamSite) -> None:
    site.put(3)
    site.server.put(site.stream, ("bad", b"no click"))
    site.run_well()
    assert site.ids() == site.put_ids
    with Pipeline.load(site.root) as pipeline:
        shown = pipeline.quarantine.show("clicks")
        assert shown is not None
        (row,) = shown.to_arrow().to_pylist()
        source = row["source"]
        assert (source["stream"], source["partition_key"]) == (site.stream, "bad")
        assert source["value"] == b"no click"
        assert source["record_number"] is not None and len(source["sequence_number"]) == 56
    assert site.verdicts() == {"ranges": "proven", "counts": "proven", "records": "proven"}
    site.write(more=', invalid_utf8="replace"')
    with Pipeline.load(site.root) as pipeline:
        assert pipeline.quarantine.replay("clicks", RowFilter()).replayed == 0


def test_a_quarantine_of_an_earlier_version_gets_the_fields_of_a_stream(
    site: StreamSite, spark: SparkSession
) -> None:
    """Such a version knew no streams."""
    before = re.sub(r", stream: STRING.*?approximate_arrival_timestamp: TIMESTAMP", "", COLUMNS)
    assert before != COLUMNS
    folder = site.root / "lake/quarantine" / site.database / "clicks"
    spark.sql(f"CREATE TABLE delta.`{folder}` ({before}) USING delta PARTITIONED BY (flow)")
    site.server.put(site.stream, ("bad", b"no click"))
    site.run_well()
    with Pipeline.load(site.root) as pipeline:
        shown = pipeline.quarantine.show("clicks")
        assert shown is not None
        (row,) = shown.to_arrow().to_pylist()
    assert (row["source"]["stream"], row["source"]["value"]) == (site.stream, b"no click")
    assert site.verdicts() == {"ranges": "proven", "counts": "proven", "records": "proven"}


def test_a_record_on_which_the_query_fails_is_quarantined(site: StreamSite) -> None:
    site.write(
        RAW.replace(
            'hr.read_kinesis("STREAM"{more})',
            'hr.read_kinesis("STREAM").selectExpr("CAST(CAST(data AS STRING) AS INT) AS id", '
            '"stream", "shard", "record_number")',
        )
    )
    site.server.put(site.stream, *((f"k{n}", str(n).encode()) for n in range(20)), ("k", b"seven"))
    site.run_well()
    assert site.ids() == list(range(20))
    with Pipeline.load(site.root) as pipeline:
        rows = pipeline.quarantine.show("clicks")
        assert rows is not None
        (row,) = rows.to_arrow().to_pylist()
    assert row["source"]["value"] == b"seven"
    assert site.verdicts() == {"ranges": "proven", "counts": "proven", "records": "proven"}


def test_new_fields_evolve(site: StreamSite) -> None:
    site.write(more=', drift="evolve"')
    site.put(2)
    site.run_well()
    site.server.put(site.stream, ("k", b'{"id": 2, "page": "home"}'))
    site.run_well()
    assert sorted((row["id"], row["page"]) for row in site.rows("id", "page")) == [
        (0, None),
        (1, None),
        (2, "home"),
    ]


def test_the_plan_and_the_status_say_what_is_there_and_what_is_left(site: StreamSite) -> None:
    site.put(5)
    with Pipeline.load(site.root) as pipeline:
        text = " ".join(Explanation(pipeline.plan()).to_text().split())
    assert f"from Kinesis {site.stream}, 2 shards, earliest" in text
    assert "keeps stream, shard and record_number" in text
    assert LOGIN["secretAccessKey"] not in text
    site.run_well()
    site.put(7)
    assert _status(site)["lag"] == 7
    assert _status(site)["state"] == "behind"
    site.put(5_000)
    behind = _status(site)
    assert behind["lag"] >= 1_000 and behind["behind_s"] is not None
    site.run_well()
    assert (_status(site)["lag"], _status(site)["state"]) == (0, "up to date")
    assert site.ids() == site.put_ids


def _status(site: StreamSite) -> Any:
    with Pipeline.load(site.root) as pipeline:
        (flow,) = (flow for dataset in pipeline.status().datasets for flow in dataset.flows)
    return flow.to_json()


def test_sql_reads_a_stream(site: StreamSite) -> None:
    site.put(4)
    (site.root / "clicks.sql").write_text(
        "CREATE STREAMING TABLE clicks AS SELECT id FROM STREAM "
        f"read_kinesis('{site.stream}', format => 'json', schema => 'id LONG', max_records_per_trigger => 3)"
    )
    site.write_spec(libraries=[{"file": "clicks.sql"}])
    site.run_well()
    assert site.ids() == site.put_ids
    assert len(site.commits()) > 1


def test_a_start_in_time_leaves_out_earlier_records_also_of_children(site: StreamSite) -> None:
    site.put(10)
    site.server.split(site.stream)
    site.write(more=', starting_timestamp="2100-01-01"')
    site.run_well()
    site.put(10)
    site.server.merge(site.stream)
    site.run_well()
    assert site.ids() == []


def test_a_query_with_state_starts_where_its_options_say(site: StreamSite) -> None:
    site.write(STATEFUL)
    site.put(10)
    site.server.put(site.stream, ("again", b'{"id": 3}'))
    site.run_well()
    site.put(10)
    site.server.put(site.stream, ("again", b'{"id": 12}'))
    site.run_well()
    assert site.ids() == site.put_ids


def test_a_query_with_state_cannot_start_at_the_end(site: StreamSite) -> None:
    site.write(STATEFUL, ', starting_position="latest"')
    error = site.error()
    assert (error.code, error.params["option"]) == ("OPTION_UNSUPPORTED", "starting_position")
    assert "starting_timestamp" in error.remedies[0]


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        (', starting_position="newest"', "ARGUMENT_INVALID", "earliest or latest"),
        (', starting_timestamp="soon"', "ARGUMENT_INVALID", "ISO 8601"),
        (', starting_position="latest", starting_timestamp="2026-01-01"', "ARGUMENT_INVALID", "both"),
        (", max_records_per_trigger=0", "ARGUMENT_INVALID", "above 0"),
        (', on_data_loss="ignore"', "ARGUMENT_INVALID", "refuse or record"),
        (', options={"accessKey": "x"}', "OPTION_UNKNOWN", "accessKeyId"),
        (', options={"consumerName": "x"}', "FEATURE_UNSUPPORTED", "enhanced fan-out"),
    ],
)
def test_wrong_options_are_errors_at_their_line(site: StreamSite, more: str, code: str, says: str) -> None:
    site.write(more=more)
    error = site.refusal()
    assert error.code == code
    assert says in " ".join((error.summary, *error.remedies, *error.facts))
    assert error.location is not None and error.location.path.endswith("clicks.py")


def test_a_stream_that_is_missing_is_named_with_its_region(site: StreamSite) -> None:
    site.server.delete(site.stream)
    error = site.refusal()
    assert error.code == "STREAM_NOT_FOUND"
    assert "eu-west-1" in error.summary and "aws kinesis create-stream" in error.remedies[1]
    site.write(more=', region="eu-central-1"')
    assert "eu-central-1" in site.refusal().summary


def test_a_server_that_does_not_answer_is_a_warning_of_the_plan_and_repeated_in_a_run(
    site: StreamSite,
) -> None:
    site.write(more=', endpoint="http://127.0.0.1:9"')
    with Pipeline.load(site.root) as pipeline:
        plan = pipeline.plan()
    assert not plan.refusals
    assert any("Kinesis does not answer" in note for note in plan.unchecked)


def test_missing_credentials_and_a_missing_region_are_named(
    site: StreamSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(site.root / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(site.root / "none"))
    server = site.server.settings
    site.write_spec(kinesis={"endpoint": server["endpoint"], "region": server["region"]})
    error = site.refusal()
    assert error.code == "KINESIS_REFUSED" and error.remedies
    login = {name: server[name] for name in ("access_key_id", "secret_access_key")}
    site.write_spec(kinesis={"endpoint": server["endpoint"], **login})
    assert site.refusal().code == "OPTION_INVALID"


def test_the_login_is_in_no_file_of_the_storage(site: StreamSite) -> None:
    site.put(3)
    site.run_well()
    secret = LOGIN["secretAccessKey"].encode()
    files = [file for file in (site.root / "lake").rglob("*") if file.is_file()]
    assert files and not [file for file in files if secret in file.read_bytes()]


def test_a_test_gives_the_rows_of_a_stream(site: StreamSite) -> None:
    """Without a server: `headrace.testing` replaces the stream."""
    rows = [{"id": 1}, {"id": 2}, Record("no click", key="bad")]
    tested = run_tested(site.root, {site.stream: [rows]})["clicks"]
    assert sorted(row["id"] for row in tested) == [1, 2]
    assert [row["_source"]["stream"] for row in tested] == [site.stream] * 2


def test_two_streams_of_one_query_are_told_apart(site: StreamSite) -> None:
    """Their shards have the same numbers, so the table says which columns have the coordinates."""
    other = f"{site.stream}_more"
    site.server.create(other, 2)
    site.write(TWO)
    for stream in (site.stream, other):
        site.server.put(stream, *((f"k{n}", stream.encode()) for n in range(20)))
    site.run_well()
    site.server.put(other, *((f"k{n}", other.encode()) for n in range(20)))
    site.run_well()
    rows = site.rows()
    assert len(rows) == 60 and all(row["value"] == row["_source"]["stream"] for row in rows)
    assert site.verdicts() == {"ranges": "proven", "counts": "proven", "records": "proven"}


def test_a_record_that_fails_is_left_out_of_its_stream_only(site: StreamSite) -> None:
    """Two regions have streams of one name, so their records have the same coordinates."""
    other = site.server.in_region("us-east-1")
    other.create_stream(StreamName=site.stream, ShardCount=2)
    read = f'hr.read_kinesis("{site.stream}"{{more}}).selectExpr("CAST(CAST(data AS STRING) AS INT) AS id")'
    union = ".union(".join((read.format(more=""), read.format(more=', region="us-east-1"')))
    site.write(f"import headrace as hr\n\n@hr.table\ndef clicks():\n    return {union})\n")
    site.server.put(site.stream, *((f"k{n}", str(n).encode()) for n in range(20)))
    values = [b"seven" if n == 7 else str(100 + n).encode() for n in range(20)]
    records = [{"PartitionKey": f"k{n}", "Data": value} for n, value in enumerate(values)]
    other.put_records(StreamName=site.stream, Records=records)
    site.run_well()
    assert site.ids() == [*range(20), *(100 + n for n in range(20) if n != 7)]


def test_a_stream_that_a_query_reads_twice_gives_its_records_to_both_reads(site: StreamSite) -> None:
    site.write(TWICE)
    site.put(20)
    site.run_well()
    site.server.split(site.stream)
    site.put(20)
    site.run_well()
    assert site.ids() == [*site.put_ids, *(1000 + one for one in site.put_ids)]


def test_the_command_line_resets_and_refreshes_a_flow_and_refuses_a_preview(
    site: StreamSite, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*command: str) -> tuple[int, str]:
        code = headrace([*command, "--project", str(site.root)])
        done = capsys.readouterr()
        return code, done.out + done.err

    site.put(5)
    code, text = call("preview", "clicks")
    assert code == 2 and f"a preview cannot read the Kinesis stream `{site.stream}`" in text
    assert call("run")[0] == 0
    site.server.split(site.stream)
    site.put(5)
    code, text = call("reset", "clicks", "--yes")
    assert code == 0, text
    assert call("run")[0] == 0
    site.check()
    code, text = call("reset", "clicks", "--from", "earliest", "--yes")
    assert code == 2 and "START_INVALID" in text
    code, text = call("full-refresh", "clicks", "--yes")
    assert code == 1 and f"reads what the stream {site.stream} still has" in " ".join(text.split()), text
    code, text = call("full-refresh", "clicks", "--accept-loss", "clicks", "--yes")
    assert code == 0, text
    site.put(5)
    assert call("run", "--full-refresh", "clicks", "--accept-loss", "clicks")[0] == 0
    site.check()


def test_a_role_is_assumed(site: StreamSite) -> None:
    site.write(more=', role_arn="arn:aws:iam::123456789012:role/reader"')
    site.put(3)
    site.run_well()
    assert site.ids() == site.put_ids


def test_an_arn_names_the_stream(site: StreamSite) -> None:
    arn = site.server.stream(site.stream).arn
    (site.root / "clicks.py").write_text(
        f"import headrace as hr\n\n@hr.table\ndef clicks():\n"
        f'    return hr.read_kinesis("{arn}", format="json", schema="id LONG")\n'
    )
    site.put(3)
    site.run_well()
    site.check()


def test_a_plan_reads_the_stream_once_on_one_machine(site: StreamSite) -> None:
    site.put(300)
    before = FAULTS.given
    site.run_well()
    assert site.ids() == site.put_ids
    # The lag was asked for, too: no records were left.
    assert FAULTS.given - before == 300


def test_the_limit_of_a_batch_follows_the_time_that_the_batch_before_took(
    site: StreamSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short batches raise it above the first limit."""
    monkeypatch.setattr("headrace.sources.kinesis.meter.FIRST_RECORDS", 50)
    site.put(400)
    site.run_well()
    site.check()
    counts = [one["input"] for one in site.commits()]
    assert counts[0] <= 50 < max(counts), counts


def test_records_of_a_batch_that_are_json_lines_of_all_sizes(site: StreamSite) -> None:
    large = json.dumps({"id": 1, "more": "x" * 900_000}).encode()
    site.server.put(
        site.stream, ("a", large), ("b", b'{"id": 2}'), ("c", large.replace(b'"id": 1', b'"id": 3'))
    )
    site.run_well()
    assert site.ids() == [1, 2, 3]
