"""``cluster`` in the spec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.declare.spec import load_project
from headrace.errors import SpecInvalidError
from headrace.model.project import ClusterSettings, ExecutorLimits

MASTER = "spark://master.example:7077"


def load(folder: Path, cluster: Any, master: str | None = MASTER, **configuration: str) -> ClusterSettings:
    spec: dict[str, Any] = {"name": "shop", "cluster": cluster, "configuration": configuration}
    if master is not None:
        spec["runtime"] = {"master": master}
    (folder / "headrace.yml").write_text(json.dumps(spec, indent=1))
    return load_project(folder).cluster


CORES = {"spark.executor.cores": "2"}


def test_packages_and_executors_are_read(tmp_path: Path) -> None:
    executors = {"max": 8, "idle": "5 minutes"}
    found = load(tmp_path, {"packages": ["pandas"], "executors": executors}, **CORES)
    limits = ExecutorLimits(least=1, most=8, backlog_s=30, idle_s=300)
    assert found == ClusterSettings(packages=("pandas",), executors=limits)


@pytest.mark.parametrize(
    ("cluster", "configuration", "key", "line"),
    [
        ({"executors": {"max": 8}}, {}, "cluster.executors", 4),
        ({"executors": {"min": 3, "max": 2}}, CORES, "cluster.executors", 4),
        ({"executors": {}}, CORES, "cluster.executors.max", 4),
        (
            {"executors": {"max": 2}},
            {**CORES, "spark.dynamicAllocation.enabled": "true"},
            "configuration.spark.dynamicAllocation.enabled",
            10,
        ),
    ],
)
def test_what_cannot_work_is_refused_with_its_line(
    tmp_path: Path, cluster: Any, configuration: dict[str, str], key: str, line: int
) -> None:
    with pytest.raises(SpecInvalidError) as refused:
        load(tmp_path, cluster, **configuration)
    assert refused.value.params["key"] == key
    assert refused.value.location is not None and refused.value.location.line == line


def test_a_local_master_needs_no_size_of_executors(tmp_path: Path) -> None:
    assert load(tmp_path, {"executors": {"max": 2}}, None).executors is not None
