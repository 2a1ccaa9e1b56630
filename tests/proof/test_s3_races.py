"""Races of two writers on a server that decides them as S3 does."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.model.project import S3Settings
from headrace.storage.s3.access import S3Access, S3Files
from headrace.storage.s3.spark import share_credentials
from object_server import KEY, REGION, SECRET
from versitygw import MISSING, find_versitygw, running_versitygw

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.thorough

_COMMITS = 100


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Iterator[S3Files]:
    if find_versitygw() is None:
        pytest.skip(MISSING)
    with running_versitygw(tmp_path) as server:
        settings = S3Settings(endpoint=server.url, region=REGION, access_key_id=KEY, secret_access_key=SECRET)
        found = S3Files(server.make_bucket(), S3Access(settings))
        end = share_credentials({found.bucket: found.access}, {}, spark, owned=True)
        yield found
        end()


def test_two_engines_commit_at_the_same_time_and_no_commit_is_lost_or_doubled(
    spark: SparkSession, files: S3Files
) -> None:
    path, options = f"s3://{files.bucket}/race", dict(files.table_options)

    def with_spark(number: int) -> None:
        spark.range(number, number + 1).coalesce(1).write.format("delta").mode("append").save(path)

    def with_rust(number: int) -> None:
        rows = pa.table({"id": pa.array([number], pa.int64())})
        write_deltalake(path, rows, mode="append", storage_options=options)

    with_spark(0)

    def many(write_one: int) -> None:
        for number in range(1 + write_one, 2 * _COMMITS + 1, 2):
            (with_spark, with_rust)[write_one](number)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(many, (0, 1)))
    table = DeltaTable(path, storage_options=options)
    assert table.version() == 2 * _COMMITS
    assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == list(range(2 * _COMMITS + 1))
    rows = spark.read.format("delta").load(path).collect()
    assert sorted(row.id for row in rows) == list(range(2 * _COMMITS + 1))
