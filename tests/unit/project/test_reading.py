"""`hr.read_delta`: a table for a script or a notebook, without a JVM."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from lake import HandFlow, Lake
from stores import At

import headrace as hr
from headrace.errors import (
    ArgumentInvalidError,
    ReadVersionUnknownError,
    SpecNotFoundError,
    StorageUnsupportedError,
    TableUnknownError,
)

SPEC = "name: shop\nstorage: ./lake\nkafka: {bootstrap.servers: 127.0.0.1:9}\n"


@pytest.fixture
def flow(at: At, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HandFlow:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_PROFILE", raising=False)
    (tmp_path / "headrace.yml").write_text(SPEC)
    flow = Lake(tmp_path / "lake", at).table().flow()
    flow.append({0: (0, 10)})
    flow.append({0: (10, 20)})
    return flow


def test_a_dataset_of_the_pipeline_that_we_are_in(flow: HandFlow) -> None:
    found = hr.read_delta("bronze", columns=["id", "_source.topic"], where="id >= 15", limit=3)
    assert found.column_names == ["id", "_source.topic"]
    assert found.schema.types == [pa.int64(), pa.string()]
    assert found.num_rows == 3
    assert min(found["id"].to_pylist()) >= 15


def test_a_folder_needs_no_pipeline(flow: HandFlow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path.parent)
    assert hr.read_delta(flow.table.path).num_rows == 20
    assert hr.read_delta(str(flow.table.path)).num_rows == 20
    assert hr.read_delta("bronze", project=tmp_path).num_rows == 20
    assert hr.read_delta(flow.table.path.as_uri()).num_rows == 20
    with pytest.raises(SpecNotFoundError):
        hr.read_delta("bronze")


def test_an_earlier_version(flow: HandFlow) -> None:
    newest = flow.table.version
    assert hr.read_delta("bronze", version=newest - 1).num_rows == 10
    with pytest.raises(ReadVersionUnknownError):
        hr.read_delta("bronze", version=newest + 1)
    with pytest.raises(ReadVersionUnknownError):
        hr.read_delta("bronze", timestamp="2000-01-01")
    assert hr.read_delta("bronze", timestamp=datetime.now().astimezone()).num_rows == 20


@pytest.mark.parametrize(
    "arguments",
    [
        {"version": 1, "timestamp": "2026-01-01"},
        {"version": "1"},
        {"limit": -1},
        {"columns": "id"},
        {"timestamp": "yesterday"},
    ],
)
def test_arguments_that_mean_nothing_are_named(flow: HandFlow, arguments: dict[str, object]) -> None:
    with pytest.raises(ArgumentInvalidError) as raised:
        hr.read_delta("bronze", **arguments)  # type: ignore[arg-type]
    assert raised.value.params["argument"] in arguments


def test_a_table_that_is_not_there(flow: HandFlow) -> None:
    with pytest.raises(TableUnknownError):
        hr.read_delta("bronce")


def test_it_starts_no_spark(flow: HandFlow) -> None:
    code = (
        "import sys, headrace as hr\n"
        "assert hr.read_delta('bronze').num_rows == 20\n"
        "assert not {'pyspark', 'py4j'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("text", ["gs://bucket/orders", "abfss://c@account/orders"])
def test_a_table_in_an_object_store_is_refused_and_is_not_a_local_folder(text: str) -> None:
    with pytest.raises(StorageUnsupportedError) as caught:
        hr.read_delta(text)
    assert caught.value.params["storage"] == text


def test_a_path_with_a_colon_is_a_path(
    flow: HandFlow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow.table.path.rename(tmp_path / "day:1")
    monkeypatch.chdir(tmp_path)
    assert hr.read_delta(Path("day:1")).num_rows == 20
