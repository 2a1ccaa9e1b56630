"""Names and paths of other systems are replaced as the spec maps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.model.project import PathMap, TableMap

PATHS = PathMap(
    {"dbfs:/": "/data", "dbfs:/raw": "/raw", "/mnt": "/mnt/shop/files", "abfss:": "/azure", "s3a://b": "/s3"}
)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("dbfs:/orders/*.json", "/data/orders/*.json"),
        ("dbfs:///orders", "/data/orders"),
        ("dbfs:/", "/data"),
        ("dbfs:/raw/orders", "/raw/orders"),
        ("dbfs:/rawer", "/data/rawer"),
        ("/mnt/orders", "/mnt/shop/files/orders"),
        ("/mntx/orders", "/mntx/orders"),
        ("abfss://c@a.dfs.core.windows.net/x", "/azure/c@a.dfs.core.windows.net/x"),
        ("s3a://b/x", "/s3/x"),
        ("s3a://bb/x", "s3a://bb/x"),
        ("landing", "landing"),
    ],
)
def test_the_longest_prefix_of_a_path_is_replaced(path: str, found: str) -> None:
    assert PATHS.map(path) == found
    assert PATHS.map(found) == found, "a path is mapped once"


TABLES = {
    "project.source.*": "/lake",
    "project.*": "/folders",
    "samples.nyctaxi.trips": "/trips",
    "raw.orders": "s3a://raw/orders",
    "hive.*": "spark_catalog",
    "old.sales.*": "glue.archive",
}


@pytest.mark.parametrize(
    ("name", "path", "parts"),
    [
        ("samples.nyctaxi.trips", "/trips", ()),
        ("Samples.NYCTaxi.Trips", "/trips", ()),
        ("project.source.sales", "/lake/sales", ()),
        ("project.other.sales", "/folders/other/sales", ()),
        ("raw.orders", "s3a://raw/orders", ()),
        ("hive.sales.orders", None, ("spark_catalog", "sales", "orders")),
        ("old.sales.orders", None, ("glue", "archive", "orders")),
    ],
)
def test_a_name_gets_the_path_or_the_catalog_of_its_entry(
    name: str, path: str | None, parts: tuple[str, ...]
) -> None:
    found = TableMap(TABLES).find(tuple(name.split(".")))
    assert found is not None
    assert (found.path, found.parts) == (path, parts)


def test_a_name_without_an_entry_is_not_mapped() -> None:
    assert TableMap(TABLES).find(("orders",)) is None
    assert TableMap(TABLES).find(("samples", "nyctaxi", "zones")) is None
    assert TableMap(TABLES).find(("project",)) is None


def test_the_storage_of_another_pipeline_has_its_tables_by_schema(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    found = TableMap({"project.*": str(tmp_path)}).find(("project", "source", "sales"))
    assert found is not None
    assert found.path == f"{tmp_path}/tables/source/sales"


def test_the_case_of_a_name_is_ignored_in_the_folder_of_an_entry(tmp_path: Path) -> None:
    for folder in ("shop/Countries", "lake/tables/raw/orders", "twice/a", "twice/A"):
        (tmp_path / folder).mkdir(parents=True)
    patterns = {"samples.shop.*": "shop", "samples.twice.*": "twice", "other.*": "lake"}
    tables = TableMap({pattern: str(tmp_path / folder) for pattern, folder in patterns.items()})
    for name, path in {
        "SAMPLES.Shop.countries": "shop/Countries",
        "samples.shop.New": "shop/New",
        "samples.twice.a": "twice/a",
        "other.RAW.Orders": "lake/tables/raw/orders",
    }.items():
        found = tables.find(tuple(name.split(".")))
        assert found is not None and found.path == str(tmp_path / path)
