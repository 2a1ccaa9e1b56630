"""Names and paths in queries mean the right datasets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import SourceLocation
from headrace.model.declarations import TemporaryView
from headrace.model.names import NamesInUse, TableName
from headrace.model.project import ProjectSettings, TableMap
from headrace.model.queries import PythonQuery
from headrace.plan.names import NameRules, find_dataset, quoted, split_name
from headrace.storage.layout import Storage


@pytest.fixture
def rules(tmp_path: Path) -> NameRules:
    return NameRules(
        ProjectSettings(
            name="shop",
            file=tmp_path / "pipeline" / "headrace.yml",
            profile="dev",
            storage=Storage.at(tmp_path / "lake"),
            libraries=(),
            database="shop",
            configuration={"spark.sql.catalog.iceberg": "org.apache.iceberg.spark.SparkCatalog"},
            catalog="main",
        )
    )


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("orders", ("orders",)),
        ("sales.orders", ("sales", "orders")),
        ("main.`my sales`.orders", ("main", "my sales", "orders")),
        ("`a``b`.c", ("a`b", "c")),
        ("delta.`/data/x.y`", ("delta", "/data/x.y")),
        ("a b", None),
        ("a..b", None),
    ],
)
def test_names_are_split_as_spark_splits_them(text: str, parts: tuple[str, ...] | None) -> None:
    assert split_name(text) == parts


@pytest.mark.parametrize(
    ("parts", "table"),
    [
        (("orders",), TableName("shop", "orders")),
        (("sales", "orders"), TableName("sales", "orders")),
        (("main", "sales", "orders"), TableName("sales", "orders")),
        (("spark_catalog", "sales", "orders"), TableName("sales", "orders")),
        (("bronze", "sales", "orders"), TableName("bronze__sales", "orders")),
        (("silver", "sales", "orders"), TableName("silver__sales", "orders")),
        (("LIVE", "orders"), TableName("shop", "orders")),
        (("iceberg", "sales", "orders"), None),
        (("parquet", "/data/x"), None),
        (("global_temp", "x"), None),
        (("delta", "/elsewhere/shop/orders"), None),
    ],
)
def test_one_two_and_three_parts_name_a_dataset(
    rules: NameRules, parts: tuple[str, ...], table: TableName | None
) -> None:
    assert rules.table(parts) == table


def test_a_path_under_the_storage_is_a_dataset(rules: NameRules) -> None:
    folder = rules.settings.storage.tables / "shop" / "orders"
    assert rules.path(str(folder)) == TableName("shop", "orders")
    assert rules.path("../lake/tables/shop/orders") == TableName("shop", "orders")
    assert rules.path(folder.uri) == TableName("shop", "orders")
    assert rules.table(("delta", str(folder))) == TableName("shop", "orders")
    assert rules.path(str(folder / "part=1")) is None
    assert rules.path(f"s3a://bucket{folder}") is None


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("main.shop.cells", "main.shop.cells"),
        ("Cells", "main.shop.cells"),
        ("shop.cells", "main.shop.cells"),
        ("other.cells", None),
        ("LIVE.cells", None),
        ("towns", "towns"),
        ("event_log", None),
        ("main.geo.rivers", "main.geo.*"),
        ("geo.rivers", "main.geo.*"),
    ],
)
def test_an_entry_maps_the_short_names_of_a_table_too(rules: NameRules, text: str, rule: str | None) -> None:
    targets = {"main.shop.cells": "/cells", "towns": "/towns", "main.geo.*": "/geo", "shop.event_log": "/x"}
    rules = replace(rules, settings=replace(rules.settings, tables=TableMap(targets)))
    parts = split_name(text)
    assert parts is not None
    found = rules.mapped(parts)
    assert (None if found is None else found.rule) == rule
    in_use = replace(rules, in_use=NamesInUse(schema="geo"))
    found = in_use.mapped(("cells",))
    assert found is not None and found.rule == "main.geo.*"


def test_a_temporary_view_answers_to_its_bare_name_only() -> None:
    name = TableName("shop", "cells")
    query = PythonQuery(lambda: None, SourceLocation("a.py", 1))
    temporary = TemporaryView(name=name, query=query)
    for parts in (("cells",), ("LIVE", "cells")):
        assert find_dataset({"shop.cells": temporary}, name, parts) is temporary
    for parts in (("shop", "cells"), ("main", "shop", "cells"), ()):
        assert find_dataset({"shop.cells": temporary}, name, parts) is None
        view = replace(temporary, has_schema=True)
        assert find_dataset({"shop.cells": view}, name, parts) is view


def test_quoting_keeps_any_name_one_name() -> None:
    assert split_name(quoted(TableName("my sales", "a`b.c"))) == ("my sales", "a`b.c")
