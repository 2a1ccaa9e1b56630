"""Rows of a table, without Spark."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from lake import HandFlow, Lake
from stores import At

from headrace.errors import (
    PackageMissingError,
    ReadColumnUnknownError,
    ReadConditionInvalidError,
    TableUnknownError,
    TableUnreadableError,
)
from headrace.model.names import TableName
from headrace.observe.read import Selection, find_table, read_rows, shown


@pytest.fixture
def lake(at: At, tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake", at)


@pytest.fixture
def flow(lake: Lake) -> HandFlow:
    flow = lake.table().flow()
    flow.append({0: (0, 10)})
    return flow


def test_all_rows_with_their_columns(at: At, flow: HandFlow) -> None:
    found = read_rows(at(flow.table.path))
    assert found.columns == ("id", "_source")
    assert found.types == ("long", "struct")
    assert sorted(row[0] for row in found.rows) == list(range(10))
    assert (found.version, found.is_cut) == (2, False)


def test_a_condition_a_limit_and_columns(at: At, flow: HandFlow) -> None:
    chosen = Selection(where="id > 3 OR id = 1", limit=2, columns=["_source.offset"])
    found = read_rows(at(flow.table.path), chosen)
    assert found.columns == ("_source.offset",)
    assert len(found.rows) == 2
    assert found.is_cut
    assert all(offset > 3 or offset == 1 for (offset,) in found.rows)


@pytest.mark.parametrize(
    ("where", "remedy"),
    [
        ("topic = ada", "topic = 'ada'"),
        ("id IN (ada, 1)", "id IN ('ada', 1)"),
        ("topic like ada", "topic like 'ada'"),
    ],
)
def test_a_bare_word_in_a_condition_gets_the_hint_to_quote(
    at: At, flow: HandFlow, where: str, remedy: str
) -> None:
    with pytest.raises(ReadColumnUnknownError) as raised:
        read_rows(at(flow.table.path), Selection(where=where.replace("topic", "_source.topic")))
    expected = remedy.replace("topic", "_source.topic")
    assert raised.value.remedies[-1] == f'put text values in single quotes:   --where "{expected}"'


def test_rows_become_arrow_and_pandas(at: At, flow: HandFlow) -> None:
    found = read_rows(at(flow.table.path), Selection(where="id < 3", columns=["id"]))
    assert sorted(found.to_arrow().column("id").to_pylist()) == [0, 1, 2]
    assert sorted(found.to_pandas()["id"]) == [0, 1, 2]
    assert repr(found) == f"<Rows of {flow.table.path.name} v2: 3 x id>"


def test_deleted_rows_are_not_read(at: At, flow: HandFlow) -> None:
    flow.table.delete([0, 9], flow.table.active()[0])
    found = read_rows(at(flow.table.path), Selection(columns=["id"]))
    assert sorted(id for (id,) in found.rows) == list(range(1, 9))


def test_names_keep_their_case(at: At, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.table({"orderId": [1, 2], "odd name": ["a", "b"]}))
    found = read_rows(at(tmp_path / "t"), Selection(where="orderId = 2", columns=["odd name"]))
    assert found.rows == (("b",),)


@pytest.mark.parametrize(("column", "meant"), [("ID", "id"), ("ofset", "_source.offset")])
def test_an_unknown_column_is_an_error_with_the_name_that_was_meant(
    at: At, flow: HandFlow, column: str, meant: str
) -> None:
    with pytest.raises(ReadColumnUnknownError) as raised:
        read_rows(at(flow.table.path), Selection(columns=[column]))
    assert raised.value.remedies == (f"did you mean `{meant}`?",)
    with pytest.raises(ReadColumnUnknownError) as raised:
        read_rows(at(flow.table.path), Selection(where=f"{column} = 3"))
    assert raised.value.params["column"] == column


@pytest.mark.parametrize("where", ["id >", "id > 'x'", "nothing(id) = 1", "1; DROP TABLE t"])
def test_a_condition_that_cannot_be_evaluated_is_an_error(at: At, flow: HandFlow, where: str) -> None:
    with pytest.raises(ReadConditionInvalidError):
        read_rows(at(flow.table.path), Selection(where=where))


@pytest.mark.parametrize(
    ("where", "fact"),
    [
        ("id >", "expected an expression after `id >`"),
        ("(id > 1", "expected ) after `(id > 1`"),
        ("id > AND n = 1", "expected ), found n"),
        ("id > 'x", "Unterminated string literal"),
    ],
)
def test_a_mistake_in_a_condition_is_told_in_its_own_words(
    at: At, flow: HandFlow, where: str, fact: str
) -> None:
    with pytest.raises(ReadConditionInvalidError) as raised:
        read_rows(at(flow.table.path), Selection(where=where))
    assert raised.value.facts == (fact,)


def test_pandas_is_named_if_it_is_not_installed(
    at: At, flow: HandFlow, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = read_rows(at(flow.table.path))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(PackageMissingError) as raised:
        rows.to_pandas()
    assert raised.value.remedies[0] == "pip install pandas"


def test_text_that_is_compared_with_a_number_says_nothing_against_the_table(at: At, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", pa.table({"name": ["white bowl", "jug"]}))
    with pytest.raises(ReadConditionInvalidError):
        read_rows(at(tmp_path / "t"), Selection(where="name = 5"))


def test_a_table_is_found_by_name_and_by_folder(at: At, lake: Lake, flow: HandFlow) -> None:
    path = flow.table.path
    assert find_table("bronze", lake.settings.storage, "default") == at(path)
    assert find_table("default.bronze", lake.settings.storage, "other") == at(path)
    assert find_table(str(at(path)), lake.settings.storage, "default") == at(path)
    assert find_table(str(at(path)), None, "default") == at(path)


def test_a_table_without_a_commit_is_not_created_yet(lake: Lake) -> None:
    path = lake.settings.storage.table(TableName("default", "new"))
    (path / "_delta_log" / "_staged_commits" / "0.json").create("{}")
    with pytest.raises(TableUnknownError, match="`new` is not created yet"):
        find_table("new", lake.settings.storage, "default")


def test_an_unknown_table_is_an_error_with_the_name_that_was_meant(lake: Lake, flow: HandFlow) -> None:
    with pytest.raises(TableUnknownError) as raised:
        find_table("bronce", lake.settings.storage, "default")
    assert raised.value.remedies == ("did you mean `bronze`?",)


def test_a_storage_without_tables_needs_a_run(lake: Lake) -> None:
    with pytest.raises(TableUnknownError) as raised:
        find_table("bronze", lake.settings.storage, "default")
    assert raised.value.remedies == ("write the table first:   headrace run",)


def test_a_table_whose_file_is_gone_is_an_error(at: At, flow: HandFlow) -> None:
    (flow.table.path / flow.table.active()[0]["path"]).unlink()
    with pytest.raises(TableUnreadableError) as caught:
        read_rows(at(flow.table.path))
    name = flow.table.path.name
    assert [one.rpartition(":   ")[2] for one in caught.value.remedies] == [
        f"headrace verify {name}",
        f"headrace full-refresh {name}",
    ]


def test_values_as_cells() -> None:
    assert [
        shown(value) for value in (None, "a", 1.5, b"key", b"\xff\x00", Decimal("1.50"), {"a": [b"x", None]})
    ] == ["null", "a", "1.5", "key", "0xff00", "1.50", '{"a": ["x", null]}']
    moment = datetime(2026, 1, 2, 3, 4, 5, 678900, tzinfo=UTC)
    assert shown(moment) == "2026-01-02 03:04:05.678"
    assert shown({"at": moment}) == '{"at": "2026-01-02T03:04:05.678900+00:00"}'


def test_a_quarantine_table_is_named_as_one(at: At, tmp_path: Path) -> None:
    for folder in ("tables", "quarantine"):
        write_deltalake(tmp_path / folder / "default" / "orders", pa.table({"id": [1]}))
    names = [read_rows(at(tmp_path / one / "default" / "orders")).table for one in ("tables", "quarantine")]
    assert names == ["orders", "quarantine/default/orders"]
