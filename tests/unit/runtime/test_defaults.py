"""The Spark settings that Headrace chooses, and that a user can override each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.model.secrets import Redactor
from headrace.runtime import jvm
from headrace.runtime.defaults import (
    build_session_settings,
    build_settings,
    default_master,
    find_named_master,
    local_files,
)
from headrace.runtime.jvm import choose_heap
from headrace.runtime.session import jvm_environment

GB = 1 << 30

pytestmark = pytest.mark.usefixtures("cores")


class Session:
    """A Spark context with settings."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings
        self.master = settings["spark.master"]

    @property
    def _jsc(self) -> Session:
        return self

    def sc(self) -> Session:
        return self

    def conf(self) -> Session:
        return self

    def contains(self, key: str) -> bool:
        return key in self._settings


def test_every_setting_can_be_overridden(tmp_path: Path) -> None:
    chosen = build_settings("shop", "local[2]", tmp_path, {})
    mine = dict.fromkeys(chosen, "mine")
    assert build_settings("shop", "local[2]", tmp_path, mine) == mine


def test_a_cluster_gets_no_local_addresses_and_folders(tmp_path: Path) -> None:
    chosen = build_settings("shop", "spark://master.test:7077", tmp_path, {})
    assert not chosen.keys() & {"spark.driver.host", "spark.driver.bindAddress", "spark.local.dir"}
    assert "spark.sql.warehouse.dir" not in chosen


@pytest.mark.parametrize("master", ["spark://master.test:7077", "yarn", "local-cluster[1,1,1024]"])
def test_executors_are_given_the_jars_that_they_need(master: str, tmp_path: Path) -> None:
    jars = [Path("/jars/delta.jar"), Path("/jars/kafka.jar")]
    mine = {"spark.jars": "/mine.jar"}
    chosen = build_settings("shop", master, tmp_path, mine, jars)
    assert chosen["spark.jars"] == "/jars/delta.jar,/jars/kafka.jar,/mine.jar"
    assert "spark.jars" not in build_settings("shop", "local[2]", tmp_path, {}, jars)


@pytest.mark.parametrize(
    ("master", "partitions"), [("local", "2"), ("local[1]", "2"), ("local[16]", "32"), ("local[4,2]", "8")]
)
def test_shuffles_suit_the_cores(master: str, partitions: str, tmp_path: Path) -> None:
    assert build_settings("shop", master, tmp_path, {})["spark.sql.shuffle.partitions"] == partitions


def test_a_local_session_splits_small_tables_by_cores_and_a_cluster_as_spark_does(
    tmp_path: Path, cores: int
) -> None:
    setting = "spark.sql.leafNodeDefaultParallelism"
    assert build_settings("shop", None, tmp_path, {})[setting] == str(cores)
    assert build_settings("shop", "local[5]", tmp_path, {})[setting] == "5"
    assert setting not in build_settings("shop", "yarn", tmp_path, {})


def test_a_master_that_the_user_names_is_told_apart_from_the_same_default(tmp_path: Path, cores: int) -> None:
    chosen = build_settings("shop", None, tmp_path, {})
    named = build_settings("shop", default_master(), tmp_path, {})
    assert chosen["spark.master"] == named["spark.master"] == f"local[{4 * cores}]"
    partitions = "spark.sql.shuffle.partitions"
    assert (chosen[partitions], named[partitions]) == (str(2 * cores), str(8 * cores))
    assert find_named_master(Session(chosen)) is None
    assert find_named_master(Session(named)) == default_master()


@pytest.mark.parametrize("master", [None, "local[2]", "yarn"])
def test_delta_does_not_check_the_whole_table_at_each_commit_in_other_time_zones(master: str | None) -> None:
    setting = "spark.databricks.delta.allFilesInCrc.verificationMode.forceOnNonUTC.enabled"
    assert build_session_settings(master)[setting] == "false"


@pytest.mark.parametrize(
    ("count", "total", "heap"),
    [(2, 24 * GB, "1280m"), (2, 4 * GB, "1024m"), (16, 64 * GB, "5120m"), (1, 1 * GB, "512m")],
)
def test_the_heap_suits_the_machine(
    count: int, total: int, heap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Memory:
        pass

    memory = Memory()
    memory.total = total  # type: ignore[attr-defined]
    monkeypatch.setattr(jvm.psutil, "virtual_memory", lambda: memory)
    assert choose_heap(count) == heap


@pytest.mark.parametrize(
    ("variables", "given"),
    [
        ({}, "C.UTF-8"),
        ({"LC_ALL": "C", "LANG": "en_US.UTF-8"}, "C.UTF-8"),
        ({"LANG": "POSIX"}, "C.UTF-8"),
        ({"LANG": "de_DE.utf8"}, None),
        ({"LC_ALL": "en_US.UTF-8", "LANG": "C"}, None),
    ],
)
def test_java_sees_files_of_any_name_also_in_a_bare_environment(
    variables: dict[str, str], given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert jvm_environment({"spark.master": "local[2]"}, Redactor()).get("LC_ALL") == given


def test_the_schemas_of_a_metastore_are_in_no_folder_that_is_removed(tmp_path: Path) -> None:
    hive = {"spark.sql.catalogImplementation": "hive"}
    assert str(tmp_path) not in build_settings("x", None, tmp_path, hive)["spark.sql.warehouse.dir"]
    given = {**hive, "spark.sql.warehouse.dir": "/srv/lake"}
    assert build_settings("x", None, tmp_path, given)["spark.sql.warehouse.dir"] == "/srv/lake"


def test_a_user_s_class_for_the_logs_of_tables_stands_alone() -> None:
    assert "spark.delta.logStore.file.impl" in local_files({})
    assert "spark.delta.logStore.file.impl" not in local_files({"spark.delta.logStore.class": "my.Store"})
    assert "spark.hadoop.fs.file.impl" in local_files({"spark.delta.logStore.class": "my.Store"})
