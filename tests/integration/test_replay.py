"""Rejected rows are replayed: through today's code, into the table, exactly once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.cli.main import run as headrace
from headrace.errors import ReplayImpossibleError
from headrace.observe.quarantine import RowFilter
from headrace.project.pipeline import Pipeline
from headrace.project.quarantine import ReplayResult
from proof.shop import Shop

pytestmark = pytest.mark.usefixtures("spark")

HEAD = """
import headrace as hr
from headrace import spark
from pyspark.sql import functions as F
"""
ORDERS = (
    HEAD
    + """
@hr.table
{expectations}
def orders():
    return hr.read_kafka("{topic}", format="json", schema="id LONG, amount INT")
"""
)
BELOW = """
@hr.table
def copies():
    return spark.readStream.table("orders")

@hr.materialized_view
def count():
    return spark.read.table("orders").agg(F.count("*").alias("n"))
"""


def produce(shop: Shop, records: Sequence[dict[str, Any]]) -> None:
    shop.ledger.produce_values(shop.topic, [(json.dumps(record).encode(), 0) for record in records])


def orders(shop: Shop, expectations: str, code: str = ORDERS) -> None:
    shop.write(code.replace("{expectations}", expectations))


def replay(shop: Shop, dataset: str = "orders", **chosen: Any) -> ReplayResult:
    before = SparkSession.getActiveSession()
    with Pipeline.load(shop.root) as pipeline:
        result = pipeline.quarantine.replay(dataset, RowFilter(**chosen))
    # The sessions that Headrace makes are not the user's.
    assert SparkSession.getActiveSession() is before
    return result


def read(shop: Shop, table: str = "orders") -> list[dict[str, Any]]:
    with Pipeline.load(shop.root) as pipeline:
        return pipeline.read(table).to_arrow().to_pylist()


def ids(shop: Shop, table: str = "orders") -> list[int]:
    return sorted(row["id"] for row in read(shop, table))


def kept(shop: Shop, table: str = "orders") -> list[dict[str, Any]]:
    """The rows of a quarantine, in the order of their records."""
    with Pipeline.load(shop.root) as pipeline:
        rows = pipeline.quarantine.show(table)
    assert rows is not None
    return sorted(rows.arrow.to_pylist(), key=lambda row: row["id"])


def states(shop: Shop, table: str = "orders") -> Counter[str]:
    return Counter(row["state"] for row in kept(shop, table))


def grade(shop: Shop, name: str, table: str = "orders") -> str:
    flows = next(one.flows for one in shop.verify().datasets if one.dataset.name == table)
    return next(one.text for one in flows[0].grades if one.grade == name)


def test_records_go_through_the_query_and_the_expectations_of_today(shop: Shop) -> None:
    orders(shop, '@hr.expect_or_quarantine("positive", "amount > 0")', ORDERS + BELOW)
    produce(shop, [{"id": id, "amount": id - 3} for id in range(5)])
    shop.run_well()
    assert (ids(shop), states(shop)) == ([4], {"quarantined": 4})
    drops = '\n@hr.expect_or_drop("not -1", "amount <> -1")'
    expectations = '@hr.expect_or_quarantine("not too small", "amount > -3")' + drops
    # The query is another one, too.
    code = ORDERS.replace('amount INT")', 'amount INT").withColumn("double", F.expr("amount * 2"))') + BELOW
    orders(shop, expectations, code)
    done = replay(shop)
    (flow,) = done.flows
    assert (flow.replayed, flow.accepted, flow.dropped, flow.rejected, flow.left) == (3, 2, 1, 1, 0)
    assert sorted((row["id"], row["double"]) for row in read(shop)) == [(1, -4), (3, 0), (4, None)]
    assert states(shop) == {"quarantined": 1, "replayed": 3}
    (again,) = (row for row in kept(shop) if row["state"] == "quarantined")
    assert [one["name"] for one in again["reasons"]] == ["not too small"]
    assert json.loads(again["row"])["double"] == -6
    assert grade(shop, "records") == "5 read from Kafka = 3 in the table + 1 in quarantine + 1 dropped"
    assert "3 replayed: 3 in = 2 accepted + 0 quarantined + 1 dropped" in grade(shop, "counts")
    with Pipeline.load(shop.root) as pipeline:
        logged = [one for one in pipeline.events() if one.type == "operation_progress"]
    assert [(one.details["type"], one.details["status"]) for one in logged] == [
        ("QUARANTINE_REPLAY", "STARTED"),
        ("QUARANTINE_REPLAY", "COMPLETED"),
    ]
    assert (logged[1].details["replayed"], logged[1].details["rejected"]) == (3, 1)
    assert logged[1].details["duration_ms"] > 0
    # What reads the table gets the rows as any others.
    shop.run_well()
    assert ids(shop, "copies") == [1, 3, 4]
    assert read(shop, "count") == [{"n": 3}]
    # A second replay finds nothing new.
    before = shop.versions()["orders"]
    assert replay(shop).flows[0].rejected == 1
    assert shop.versions()["orders"] == before
    assert states(shop) == {"quarantined": 1, "replayed": 3}


def test_rows_without_a_record_are_checked_as_they_are(shop: Shop) -> None:
    code = (
        HEAD
        + """
@hr.table
def lines():
    return hr.read_kafka("{topic}")

@hr.table
{expectations}
def orders():
    sale = F.from_json(F.col("value").cast("string"), "id LONG, amount DECIMAL(9,2), at TIMESTAMP")
    rows = spark.readStream.table("lines").select(sale.alias("sale"), F.col("value").alias("bytes"))
    return rows.select("sale.*", "bytes").where("id IS NOT NULL")
"""
    )
    orders(shop, '@hr.expect_or_quarantine("positive", "amount > 0")', code)
    times = [f"2026-01-02T03:04:05.{id:06d}Z" for id in range(1, 4)]
    produce(shop, [{"id": n, "amount": f"-{n}.25", "at": at} for n, at in enumerate(times)])
    shop.run_well()
    assert (ids(shop), states(shop)) == ([], {"quarantined": 3})
    before = {json.loads(row["row"])["id"]: json.loads(row["row"]) for row in kept(shop)}
    orders(shop, '@hr.expect_or_quarantine("not 2", "sale.id <> 2")', code)
    reasons = [row["reasons"] for row in kept(shop)]
    with pytest.raises(ReplayImpossibleError, match=r"`not 2` uses the column `sale\.id`") as caught:
        replay(shop)
    assert (caught.value.location.path, states(shop)) == ("shop.py", {"quarantined": 3})
    assert [row["reasons"] for row in kept(shop)] == reasons
    orders(shop, '@hr.expect_or_quarantine("not 2", "id <> 2")', code)
    (flow,) = replay(shop).flows
    assert (flow.replayed, flow.rejected) == (2, 1)
    for row in read(shop):
        assert f"{row['at']:%Y-%m-%dT%H:%M:%S.%f}" + "Z" == times[row["id"]]
        assert json.loads(row["bytes"])["id"] == row["id"]
        assert str(row["amount"]) == str(before[row["id"]]["amount"])
    shop.run_well()
    assert ids(shop) == [0, 1]
    shop.verify()


def test_records_on_which_the_query_fails_stay_with_the_exception(shop: Shop) -> None:
    orders(shop, '@hr.expect_or_quarantine("positive", "amount > 0")')
    produce(shop, [{"id": id, "amount": -id} for id in range(1, 7)])
    shop.run_well()
    failing = ORDERS.replace('amount INT")', 'amount INT").withColumn("r", F.expr("60 / (amount + 4)"))')
    orders(shop, "", failing)
    (flow,) = replay(shop).flows
    assert (flow.replayed, flow.rejected) == (5, 1)
    assert ids(shop) == [1, 2, 3, 5, 6]
    (again,) = (row for row in kept(shop) if row["state"] == "quarantined")
    (reason,) = again["reasons"]
    assert (reason["kind"], reason["name"]) == ("exception", "DIVIDE_BY_ZERO")
    # Without ANSI mode the quotient is NULL, in a run and in a replay.
    shop.spec["compatibility"] = {"ansi": False}
    orders(shop, '@hr.expect_or_quarantine("a quotient", "r IS NOT NULL")', failing)
    produce(shop, [{"id": 7, "amount": -4}])
    shop.run_well()
    (row,) = (row for row in kept(shop) if row["source"]["offset"] == 6)
    assert [(one["kind"], one["name"]) for one in row["reasons"]] == [("expectation", "a quotient")]
    orders(shop, "", failing)
    (flow,) = replay(shop).flows
    assert (flow.replayed, flow.rejected, flow.left) == (2, 0, 0)
    assert sorted((row["id"], row["r"]) for row in read(shop) if row["id"] in (4, 7)) == [
        (4, None),
        (7, None),
    ]
    shop.verify()


@pytest.mark.parametrize("further", ["", '.drop("_source")'], ids=["with coordinates", "without"])
def test_bad_records_go_through_the_reader_of_today(shop: Shop, further: str) -> None:
    """Each stays with its own reason, also where the rows do not tell their record."""
    expectations = '@hr.expect_or_quarantine("positive", "amount > 0")'
    code = ORDERS.replace('amount INT")', 'amount INT")' + further)
    orders(shop, expectations, code)
    values = ('{"id": 0, "amount": 1}', '{"id": 1, "amount": "7"}', "{", '{"id": 3, "amount": "x"}')
    values = (*values, '{"id": 4, "amount": "-4"}', '{"id": 5, "amount": "5"}')
    shop.ledger.produce_values(shop.topic, [(value.encode(), 0) for value in values])
    shop.run_well()
    assert (ids(shop), states(shop)) == ([0], {"quarantined": 5})
    cast = 'amount STRING").withColumn("amount", F.expr("CAST(amount AS INT)"))'
    orders(shop, expectations, code.replace('amount INT")', cast))
    (flow,) = replay(shop).flows
    assert (flow.replayed, flow.rejected, flow.left) == (2, 3, 0)
    assert ids(shop) == [0, 1, 5]
    reasons = {
        row["source"]["offset"]: [(one["kind"], one["name"]) for one in row["reasons"]]
        for row in kept(shop)
        if row["state"] == "quarantined"
    }
    assert reasons == {
        2: [("record", "RECORD_UNPARSEABLE")],
        3: [("exception", "CAST_INVALID_INPUT")],
        4: [("expectation", "positive")],
    }
    shop.verify()


def test_bad_lines_of_files_are_replayed(shop: Shop) -> None:
    code = (
        HEAD
        + """
@hr.table
def orders():
    rows = hr.read_files("in", format="json", schema="id {type}, day INT", max_files_per_trigger=1)
    return rows.selectExpr("CAST(id AS LONG) AS id", "day", "_source.path AS path")
"""
    )
    shop.write(code.replace("{type}", "LONG"))
    for day, lines in {1: '{"id": 1}\n{"id": "2"}\n', 2: '{"id": "x"}\n{"id": "4"}\n'}.items():
        folder = shop.root / "in" / f"day={day}"
        folder.mkdir(parents=True)
        (folder / "lines.json").write_text(lines)
    shop.run_well()
    assert (ids(shop), states(shop)) == ([1], {"quarantined": 3})
    shop.write(code.replace("{type}", "STRING"))
    (flow,) = replay(shop).flows
    assert (flow.replayed, flow.rejected, flow.left) == (2, 1, 0)
    found = sorted((row["id"], row["day"], row["path"][-16:]) for row in read(shop))
    assert found == [(id, day, f"day={day}/lines.json") for id, day in ((1, 1), (2, 1), (4, 2))]
    shop.verify()


def test_what_cannot_be_replayed_is_refused(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(partitions=1)
    code = (
        HEAD
        + """
@hr.table
@hr.expect_or_quarantine("positive", "amount > 0")
def orders():
    rows = hr.read_kafka("{topic}", format="json", schema="id LONG, amount INT")
    return rows.dropDuplicates(["id"])

@hr.materialized_view
@hr.expect_or_quarantine("few", "n > 100")
def counts():
    return spark.read.table("orders").agg(F.count("*").alias("n"))
"""
    )
    shop.write(code)
    produce(shop, [{"id": id, "amount": -id} for id in range(3)])
    shop.run_well()
    for dataset, text in (("orders", "keeps state"), ("counts", "is a materialized view")):
        with pytest.raises(ReplayImpossibleError, match=text):
            replay(shop, dataset)
    shop.write(code.replace("def orders():", "def more():").replace('"orders"', '"more"'))
    with pytest.raises(ReplayImpossibleError, match="no file declares"):
        replay(shop)


def test_the_command_line_replays(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    orders(shop, '@hr.expect_or_quarantine("positive", "amount > 0")')
    produce(shop, [{"id": id, "amount": -id} for id in range(3)])
    shop.run_well()
    orders(shop, "")
    monkeypatch.chdir(shop.root)
    assert headrace(["quarantine", "replay", "orders", "--where", "source['offset'] < 2"]) == 0
    assert "flow orders: 2 replayed (2 in the table), 0 rejected again" in capsys.readouterr().out
    assert headrace(["quarantine", "discard", "orders", "--yes"]) == 0
    assert headrace(["quarantine", "replay", "orders"]) == 0
    assert "no quarantined row matches" in capsys.readouterr().out
    assert grade(shop, "records") == "3 read from Kafka = 2 in the table + 1 discarded"
