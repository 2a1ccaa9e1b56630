"""The Kafka sink: what the rows of a flow become in a topic, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import HeadraceError
from headrace.plan.explain import Explanation
from headrace.project.pipeline import Pipeline
from landing import Site
from topic_reader import newest, read_topic, state_topic, values

pytestmark = pytest.mark.usefixtures("spark")

ROWS = """
import headrace as hr

hr.create_sink("sent", "kafka", {options})

@hr.append_flow(target="sent")
def send():
    return hr.read_files("landing", format="json", schema="id LONG, page STRING"){query}
"""

FEED = """
import headrace as hr

@hr.temporary_view
def changes():
    return hr.read_files("landing", format="json", schema="id LONG, at LONG, op STRING, name STRING")

hr.create_streaming_table("customers")
hr.create_auto_cdc_flow("customers", "changes", ["id"], "at", apply_as_deletes="op = 'delete'",
                        column_list=["id", "name"])
hr.create_sink("sent", "kafka", {options})

@hr.append_flow(target="sent")
def send():
    return hr.read_changes("customers", images="all")
"""

MESSAGES = (
    '.selectExpr("IF(id = 3, NULL, CAST(id AS STRING)) AS key", "IF(id = 2, NULL, page) AS value", '
    "\"array(named_struct('key', 'page', 'value', CAST(page AS BINARY))) AS headers\", "
    '"CAST(IF(id = 4, 2, NULL) AS INT) AS partition")'
)
KEYED = '.selectExpr("CAST(id AS STRING) AS key", "page AS value")'


@pytest.fixture
def site(tmp_path: Path, bootstrap: str) -> Site:
    site = Site(tmp_path / "site")
    site.write_spec(kafka={"bootstrap.servers": bootstrap})
    return site


def write(site: Site, code: str, topic: str, query: str = "", **more: str) -> None:
    site.write(code.replace("{options}", repr({"topic": topic, **more})).replace("{query}", query))


def planned_error(site: Site) -> HeadraceError:
    with Pipeline.load(site.root) as pipeline:
        (error,) = pipeline.plan().refusals
    return error


def test_messages_have_the_key_the_headers_and_the_partition_of_their_rows(
    site: Site, bootstrap: str, topic: Callable[..., str]
) -> None:
    name = topic(3)
    write(site, ROWS, name, MESSAGES)
    site.put("a.json", *({"id": one, "page": "" if one == 1 else f"p{one}"} for one in range(1, 5)))
    with Pipeline.load(site.root) as pipeline:
        text = Explanation(pipeline.plan()).to_text(500)
    sends = f"sends to the Kafka topic {name}, for readers with isolation.level=read_committed: exactly once"
    assert sends in text
    site.run_well()
    found = {one.headers()[0][1]: one for one in read_topic(bootstrap, name)}
    assert {page: (one.key(), one.value()) for page, one in found.items()} == {
        b"": (b"1", b""),
        b"p2": (b"2", None),
        b"p3": (None, b"p3"),
        b"p4": (b"4", b"p4"),
    }
    assert found[b"p4"].partition() == 2
    site.put("b.json", {"id": 5, "page": "late"})
    site.run_well()
    assert len(values(bootstrap, name)) == 5
    assert site.verify().proven


def test_a_key_has_the_partition_that_the_writer_of_spark_gives_it(
    site: Site, bootstrap: str, topic: Callable[..., str]
) -> None:
    ours, sparks = topic(5), topic(5)
    site.put("a.json", *({"id": one, "page": "p"} for one in range(100)))
    for name, more in ((ours, {}), (sparks, {"guarantee": "at_least_once"})):
        write(site, ROWS.replace("sent", f"sent_{len(more)}"), name, KEYED, **more)
        site.run_well()
    places = [{one.key(): one.partition() for one in read_topic(bootstrap, name)} for name in (ours, sparks)]
    assert len(places[0]) == 100 and places[0] == places[1]


def test_the_order_of_a_key_is_that_of_its_rows(
    site: Site, bootstrap: str, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.sinks.outside.kafka.writer._AT_ONCE", 0)
    name = topic(2)
    write(site, ROWS, name, '.selectExpr("CAST(id % 3 AS STRING) AS key", "CAST(id AS STRING) AS value")')
    for file in range(3):
        site.put(f"{file}.json", *({"id": file * 500 + one} for one in range(500)))
        site.run_well()
    for key in (b"0", b"1", b"2"):
        sent = [int(value or b"") for one, value in values(bootstrap, name) if one == key]
        assert sent == [one for one in range(1500) if one % 3 == int(key)]


def test_rows_become_json_with_their_key(site: Site, bootstrap: str, topic: Callable[..., str]) -> None:
    name = topic()
    write(site, ROWS, name, format="json", keys="page, id")
    site.put("a.json", {"id": 1, "page": 'a "quoted"'}, {"id": 2}, {"id": 3, "page": "c"})
    site.run_well()
    found = values(bootstrap, name)
    assert [json.loads(key or b"") for key, _ in found] == [
        {"page": 'a "quoted"', "id": 1},
        {"page": "c", "id": 3},
    ]
    assert [json.loads(value or b"") for _, value in found] == [
        {"id": 1, "page": 'a "quoted"'},
        {"id": 3, "page": "c"},
    ]
    with Pipeline.load(site.root) as pipeline:
        rejected = pipeline.quarantine.show("sent")
    assert rejected is not None and "a row has no key" in str(rejected.arrow.to_pylist())


def test_a_topic_follows_a_change_feed_with_its_deletes(
    site: Site, bootstrap: str, topic: Callable[..., str]
) -> None:
    name = topic(2)
    write(site, FEED, name, format="json", keys="id")

    def rows() -> dict[str, Any]:
        found = newest(bootstrap, name)
        return {(key or b"").decode(): json.loads(value) for key, value in found.items()}

    def put(at: int, **changes: str | None) -> None:
        lines = [
            {"id": int(key[1:]), "at": at, "op": "delete" if text is None else "upsert", "name": text}
            for key, text in changes.items()
        ]
        site.put(f"{at}.json", *lines)

    put(1, k1="ada", k2="bob", k3="eve")
    site.run_well()
    assert rows() == {str(n): {"id": n, "name": t} for n, t in ((1, "ada"), (2, "bob"), (3, "eve"))}
    put(2, k1="Ada", k2=None)
    site.run_well()
    assert rows() == {"1": {"id": 1, "name": "Ada"}, "3": {"id": 3, "name": "eve"}}
    assert values(bootstrap, name).count((b"2", None)) == 1
    # The table loses a key that the new feed of a full refresh does not name any more.
    put(3, k3=None, k2="back")
    with Pipeline.load(site.root) as pipeline:
        pipeline.run(datasets=["customers"])
        pipeline.full_refresh(["sent"])
    assert rows() == {"1": {"id": 1, "name": "Ada"}, "2": {"id": 2, "name": "back"}}


def test_a_row_that_the_topic_does_not_take_goes_to_the_quarantine(
    site: Site, bootstrap: str, topic: Callable[..., str]
) -> None:
    name = topic(1, **{"max.message.bytes": "20000"})
    write(site, ROWS, name, KEYED)
    site.put("a.json", *({"id": one, "page": "x" * (30_000 if one == 7 else 3_000)} for one in range(20)))
    site.run_well()
    assert {key for key, _ in values(bootstrap, name)} == {f"{one}".encode() for one in range(20) if one != 7}
    with Pipeline.load(site.root) as pipeline:
        rejected = pipeline.quarantine.show("sent")
    assert rejected is not None and "the topic takes 20000" in str(rejected.arrow.to_pylist())


def test_a_partition_that_does_not_exist_goes_to_the_quarantine(
    site: Site, bootstrap: str, topic: Callable[..., str]
) -> None:
    name = topic(2)
    write(site, ROWS, name, '.selectExpr("page AS value", "CAST(IF(id = 3, 9, 1) AS INT) AS partition")')
    site.put("a.json", *({"id": one, "page": f"p{one}"} for one in range(5)))
    site.run_well()
    assert [value for _, value in values(bootstrap, name)] == [b"p0", b"p1", b"p2", b"p4"]


def test_a_state_topic_that_does_not_keep_the_state_is_refused(
    site: Site, bootstrap: str, topic: Callable[..., str]
) -> None:
    name, state = topic(), topic()
    write(site, ROWS, name, KEYED, state_topic=state)
    site.put("a.json", {"id": 1, "page": "p"})
    error = planned_error(site)
    assert error.code == "SINK_INVALID" and "cleanup.policy" in error.summary and "is delete" in error.summary
    assert site.error().code == "SINK_INVALID"
    several = topic(2, **{"cleanup.policy": "compact"})
    write(site, ROWS, name, KEYED, state_topic=several)
    assert "has 2 partitions" in planned_error(site).summary
    write(site, ROWS, name, KEYED, state_topic=topic(1, **{"cleanup.policy": "compact"}))
    site.run_well()
    assert values(bootstrap, name) == [(b"1", b"p")]
    (kept,) = [text for key, text in values(bootstrap, state) if key == b"state"][-1:] or [b""]
    assert not kept, "nothing was written to the refused topic"


def test_a_state_topic_of_another_sink_is_refused(site: Site, topic: Callable[..., str]) -> None:
    state = topic(1, **{"cleanup.policy": "compact"})
    write(site, ROWS, topic(), KEYED, state_topic=state)
    site.put("a.json", {"id": 1, "page": "p"})
    site.run_well()
    write(site, ROWS.replace("sent", "other"), topic(), KEYED, state_topic=state)
    assert "belongs to the sink" in planned_error(site).summary
    write(site, ROWS.replace("sent", "other"), state, KEYED, state_topic=state)
    assert "its state_topic is its topic" in planned_error(site).summary


@pytest.mark.parametrize(
    ("query", "more", "words"),
    [
        (KEYED, {"keys": "id"}, "which is not for its format"),
        (KEYED, {"guarantee": "twice"}, "must be exactly_once or at_least_once"),
        (KEYED, {"shape": "json"}, "it has no option shape"),
        ('.selectExpr("id AS key", "page AS value")', {}, "its column `key` is long"),
        ("", {"format": "json", "keys": "key"}, "names the column `key`"),
        ('.selectExpr("page AS value", "array(page) AS headers")', {}, "its column `headers` must be"),
    ],
)
def test_wrong_options_are_refused_by_the_plan(
    site: Site, topic: Callable[..., str], query: str, more: dict[str, str], words: str
) -> None:
    write(site, ROWS, topic(), query, **more)
    error = planned_error(site)
    assert error.code == "SINK_INVALID" and words in error.summary, error


def test_a_new_column_of_the_query_is_sent_by_the_same_process(
    site: Site, bootstrap: str, topic: Callable[..., str]
) -> None:
    name = topic()
    write(site, ROWS, name, '.select("id")', format="json", keys="id")
    site.put("a.json", {"id": 1, "page": "p"})
    site.run_well()
    write(site, ROWS, name, '.select("id", "page")', format="json", keys="id")
    site.put("b.json", {"id": 2, "page": "q"})
    site.run_well()
    assert sorted(values(bootstrap, name)) == [(b"1", b'{"id":1}'), (b"2", b'{"id":2,"page":"q"}')]


def test_another_guarantee_is_refused_until_everything_is_sent_again(
    site: Site, bootstrap: str, topic: Callable[..., str]
) -> None:
    name = topic()
    write(site, ROWS, name, KEYED, guarantee="at_least_once")
    site.put("a.json", {"id": 1, "page": "p"})
    site.run_well()
    write(site, ROWS, name, KEYED)
    for error in (planned_error(site), site.error()):
        assert error.code == "TABLE_LOST" and "at_least_once" in error.remedies[0], error
    assert values(bootstrap, name) == [(b"1", b"p")]
    # The first remedy goes on, the second sends everything again.
    write(site, ROWS, name, KEYED, guarantee="at_least_once")
    site.put("b.json", {"id": 2, "page": "p"})
    site.run_well()
    assert [key for key, _ in values(bootstrap, name)] == [b"1", b"2"]
    write(site, ROWS, name, KEYED)
    with Pipeline.load(site.root) as pipeline:
        pipeline.full_refresh(["sent"])
    site.put("c.json", {"id": 3, "page": "p"})
    site.run_well()
    assert sorted(key or b"" for key, _ in values(bootstrap, name)) == [b"1", b"1", b"2", b"2", b"3"]
    write(site, ROWS, name, KEYED, guarantee="at_least_once")
    assert site.error().code == "TABLE_LOST"


def test_old_documents_are_deleted_and_the_state_stays(
    site: Site, bootstrap: str, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic()
    write(site, ROWS, name, KEYED)
    monkeypatch.setattr("headrace.sinks.outside.kafka.channel._KEPT_MS", -60_000)
    monkeypatch.setattr("headrace.sinks.outside.kafka.channel._EVERY", 3)
    for one in range(5):
        site.put(f"{one}.json", {"id": one, "page": "p"})
        site.run_well()
    held = values(bootstrap, state_topic(bootstrap, name))
    deleted = [key for key, value in held if value is None]
    assert deleted == [b"batch/0", b"batch/1", b"batch/2"]
    assert len(values(bootstrap, name)) == 5 and site.verify().proven


def test_a_broker_that_does_not_answer_is_reported_by_the_plan(site: Site) -> None:
    write(site, ROWS, "nowhere", KEYED, **{"kafka.bootstrap.servers": "127.0.0.1:9"})
    site.put("a.json", {"id": 1, "page": "p"})
    assert planned_error(site).code == "SINK_UNAVAILABLE"
