"""The settings that are chosen, and that each can be overridden."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.model.secrets import Redactor
from headrace.runtime import jvm
from headrace.runtime.defaults import build_settings, default_master
from headrace.runtime.jvm import choose_heap
from headrace.runtime.session import jvm_environment

GB = 1 << 30


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


def test_a_laptop_s_small_tables_are_read_by_its_cores_and_a_cluster_s_as_spark_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.runtime.defaults.available_cores", lambda: 3)
    setting = "spark.sql.leafNodeDefaultParallelism"
    assert default_master() == "local[12]"
    assert build_settings("shop", default_master(), tmp_path, {})[setting] == "3"
    assert build_settings("shop", "local[5]", tmp_path, {})[setting] == "5"
    assert setting not in build_settings("shop", "yarn", tmp_path, {})


@pytest.mark.parametrize(
    ("cores", "total", "heap"),
    [(2, 24 * GB, "1280m"), (2, 4 * GB, "1024m"), (16, 64 * GB, "5120m"), (1, 1 * GB, "512m")],
)
def test_the_heap_suits_the_machine(
    cores: int, total: int, heap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Memory:
        pass

    memory = Memory()
    memory.total = total  # type: ignore[attr-defined]
    monkeypatch.setattr(jvm.psutil, "virtual_memory", lambda: memory)
    assert choose_heap(cores) == heap


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
    assert jvm_environment("local[2]", Redactor()).get("LC_ALL") == given
