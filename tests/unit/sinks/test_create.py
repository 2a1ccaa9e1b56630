"""A table is created where a killed process has left the beginning of a log."""

from __future__ import annotations

from unittest.mock import MagicMock

from headrace.sinks.delta.table import _delete_log
from headrace.storage.location import Location


def test_the_log_of_a_table_that_another_process_has_made_meanwhile_stays(location: Location) -> None:
    log, spark = location / "tables" / "default" / "sales" / "_delta_log", MagicMock()
    kept = ["00000000000000000000.json", "00000000000000000010.checkpoint.parquet"]
    for name in (*kept, "00000000000000000000.json.tmp", "_last_checkpoint"):
        (log / name).replace("{}")
    (log / "_staged_commits" / "a.json").replace("{}")
    _delete_log(spark, log)
    assert log.list_files() == kept
    deleted = spark.sparkContext._jvm.org.apache.hadoop.fs.Path.return_value.getFileSystem.return_value.delete
    assert [call.args[1] for call in deleted.call_args_list] == [False, False], "only empty folders"
