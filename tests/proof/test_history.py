"""Sources that leave a query and come back: read on where they were left, whatever happened in between."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import deltalake
import pytest

from proof.ledger import create_topic
from proof.shop import NAMED, Shop

pytestmark = pytest.mark.usefixtures("spark")


@pytest.fixture
def both(shop: Shop) -> tuple[str, str]:
    """Two topics, one of which comes and goes."""
    names = f"{shop.topic}-eu", f"{shop.topic}-us"
    for name in names:
        create_topic(shop.ledger.bootstrap, name, 2)
    return names


def write(shop: Shop, flow: str, topics: Iterable[str]) -> None:
    shop.write(NAMED.replace("{flow}", flow).replace('"{topic}"', repr(list(topics))))


def produce(shop: Shop, *topics: str) -> None:
    for topic in topics:
        shop.ledger.produce(topic, 10, 2)


def forget_log(shop: Shop, spark: Any) -> None:
    """What Delta does to a log that has grown old."""
    deltalake.DeltaTable(shop.table("bronze")).create_checkpoint()
    for version in range(shop.versions()["bronze"]):
        for suffix in ("json", "crc"):
            file = shop.table("bronze") / "_delta_log" / f"{version:020d}.{suffix}"
            file.unlink(missing_ok=True)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def test_a_flow_that_was_renamed_and_renamed_back_reads_nothing_again(
    shop: Shop, both: tuple[str, str]
) -> None:
    eu, us = both
    write(shop, "a", [eu])
    produce(shop, eu, us)
    shop.run_well()
    write(shop, "b", [eu])
    produce(shop, eu)
    shop.run_well(rename_flow={"b": "a"})
    write(shop, "a", [eu])
    shop.run_well(rename_flow={"a": "b"})
    write(shop, "a", [eu, us])
    assert shop.refused().code == "SOURCES_CHANGED"
    shop.run_well(reset="a")
    shop.check()


def test_renames_and_a_log_that_was_cleaned_leave_the_history_whole(
    shop: Shop, both: tuple[str, str], spark: Any
) -> None:
    eu, us = both
    write(shop, "a", [eu, us])
    produce(shop, eu, us)
    shop.run_well()
    write(shop, "a", [us])
    shop.run_well(reset="a")
    produce(shop, eu, us)
    shop.run_well()
    forget_log(shop, spark)
    write(shop, "b", [us])
    shop.run_well(rename_flow={"b": "a"})
    forget_log(shop, spark)
    write(shop, "b", [us, eu])
    shop.run_well(reset="b")
    produce(shop, eu, us)
    shop.run_well()
    shop.check()


def test_what_an_older_copy_took_back_is_not_believed_when_its_versions_are_given_anew(
    shop: Shop, both: tuple[str, str], spark: Any, tmp_path: Path
) -> None:
    eu, us = both
    write(shop, "bronze", [eu])
    produce(shop, eu, us)
    shop.run_well()
    shutil.copytree(shop.table("bronze"), tmp_path / "copy")
    produce(shop, eu)
    shop.run_well()
    shutil.rmtree(shop.table("bronze"))
    shutil.copytree(tmp_path / "copy", shop.table("bronze"))
    for number in range(3):
        table = deltalake.DeltaTable(shop.table("bronze"))
        table.alter.set_table_properties({"note": str(number)}, raise_if_not_exists=False)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    assert shop.refused().code == "TABLE_BEHIND_CHECKPOINT"
    write(shop, "bronze", [eu, us])
    shop.run_well(reset="bronze")
    produce(shop, eu, us)
    shop.run_well()
    shop.check()
