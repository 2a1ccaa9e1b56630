"""What `headrace sql` keeps in the storage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stores import memory_location

from headrace.errors import (
    HeadraceError,
    SourceLocation,
    SqlInvalidError,
    SqlNameTakenError,
    SqlNameUnknownError,
    StorageUnwritableError,
)
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.runtime.places import CACHE_VARIABLE
from headrace.shell.definitions import Definitions
from headrace.storage.layout import Storage
from headrace.syntax.sql import SqlText
from headrace.syntax.stream_statements import parse_stream_statement
from headrace.syntax.tokens import Cursor

KAFKA = "CREATE TABLE k USING kafka OPTIONS (subscribe 's', kafka.sasl.password 'hidden')"
SCAN = "CREATE SCAN s ON k USING STREAM"
TABLE = "CREATE TABLE t (id LONG) USING delta LOCATION 'outside/t'"
STREAM = "CREATE STREAM j OPTIONS (checkpointLocation 'outside/j') INSERT INTO t SELECT offset FROM s"


@pytest.fixture
def definitions(tmp_path: Path) -> Definitions:
    return Definitions(
        ProjectSettings(
            name="shop",
            file=tmp_path / "headrace.yml",
            profile="dev",
            storage=Storage.at(tmp_path / "lake"),
            libraries=(),
        )
    )


def parse(text: str) -> Any:
    return parse_stream_statement(Cursor(SqlText(text, SourceLocation("job.sql", 1, 1))))


def add(definitions: Definitions, *texts: str) -> list[bool]:
    return [definitions.add(parse(text), text) for text in texts]


def test_a_stream_is_a_pipeline_of_its_table_its_scan_and_its_flow(
    definitions: Definitions, tmp_path: Path
) -> None:
    assert add(definitions, KAFKA, SCAN, TABLE, STREAM) == [True] * 4
    settings, _ = definitions.open("j", parse(STREAM))
    files = [settings.root / name for name in settings.libraries]
    assert [file.name for file in files] == ["table_default.t.sql", "scan_s.sql", "stream_j.sql"]
    assert "FROM STREAM s" in files[2].read_text()
    assert (tmp_path / "lake/tables/default/t").resolve() == tmp_path / "outside/t"
    assert (tmp_path / "lake/checkpoints/default.t/j").resolve() == tmp_path / "outside/j"
    for file in (*files, *(settings.root / "statements").iterdir()):
        assert file.stat().st_mode & 0o077 == 0, "options can have passwords"
    assert definitions.settings.redactor.data("hidden") != "hidden"


def test_statements_in_a_bucket_are_those_of_all_machines(
    definitions: Definitions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    storage = Storage(memory_location())
    in_bucket = replace(definitions.settings, storage=storage)
    kafka, scan, table = (
        "CREATE TABLE k USING kafka OPTIONS (subscribe 's')",
        SCAN,
        "CREATE TABLE t (id LONG) USING delta",
    )
    stream = "CREATE STREAM j INSERT INTO t SELECT offset FROM s"
    assert add(Definitions(in_bucket), kafka, scan, table, stream) == [True] * 4
    with pytest.raises(SqlNameTakenError):
        add(Definitions(in_bucket), scan)

    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "another machine"))
    there = Definitions(in_bucket)
    assert [there.names(kind) for kind in ("table", "scan", "stream")] == [
        ["default.k", "default.t"],
        ["s"],
        ["j"],
    ]
    found, text = there.stream("j")
    assert text == stream
    settings, _ = there.open("j", found)
    assert (settings.root / settings.libraries[-1]).read_text().startswith("CREATE FLOW")
    assert settings.root.is_relative_to(tmp_path / "another machine")
    there.remove("stream", "j")
    assert Definitions(in_bucket).names("stream") == []


@pytest.mark.parametrize(
    ("text", "problem"), [(KAFKA, "has a secret"), (TABLE, "needs a storage on a local disk")]
)
def test_a_bucket_gets_no_secrets_and_no_links(definitions: Definitions, text: str, problem: str) -> None:
    storage = Storage(memory_location())
    in_bucket = Definitions(replace(definitions.settings, storage=storage))
    with pytest.raises(SqlInvalidError, match=problem) as caught:
        add(in_bucket, text)
    assert caught.value.location is not None and caught.value.remedies
    assert list(storage.root.walk()) == []


def test_a_second_definition_is_refused_or_kept(definitions: Definitions) -> None:
    add(definitions, KAFKA, SCAN)
    with pytest.raises(SqlNameTakenError):
        add(definitions, SCAN)
    assert add(definitions, SCAN.replace("SCAN", "SCAN IF NOT EXISTS")) == [False]
    definitions.remove("scan", "S")
    assert add(definitions, SCAN) == [True]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("CREATE SCAN x ON nowhere USING STREAM", SqlNameUnknownError),
        ("CREATE TABLE x (id LONG) USING delta LOCATION 's3a://bucket/x'", SqlInvalidError),
        ("CREATE TABLE x (id LONG,, b) USING delta", HeadraceError),
    ],
)
def test_a_wrong_definition_is_not_kept(
    definitions: Definitions, text: str, error: type[HeadraceError]
) -> None:
    with pytest.raises(error) as caught:
        add(definitions, text)
    assert caught.value.location is not None
    assert definitions.names("scan") + definitions.names("table") == []


def test_a_checkpoint_of_another_query_is_refused(definitions: Definitions, tmp_path: Path) -> None:
    add(definitions, KAFKA, SCAN, TABLE)
    (tmp_path / "outside/j/offsets").mkdir(parents=True)
    with pytest.raises(SqlInvalidError, match="checkpoint of another query"):
        definitions.open("j", parse(STREAM))


def test_only_a_delta_table_of_the_shell_is_written(definitions: Definitions) -> None:
    add(definitions, KAFKA, SCAN)
    with pytest.raises(SqlNameUnknownError):
        definitions.open("j", parse(STREAM))
    with pytest.raises(SqlInvalidError, match="Kafka table"):
        definitions.open("j", parse(STREAM.replace("INTO t", "INTO k")))


def test_a_table_without_rows_is_dropped_with_its_link(definitions: Definitions, tmp_path: Path) -> None:
    add(definitions, TABLE)
    name, location = TableName("default", "t"), SourceLocation("job.sql", 1)
    definitions.drop_table(name, location)
    assert not (tmp_path / "lake/tables/default/t").is_symlink()
    add(definitions, TABLE)
    (tmp_path / "outside/t/_delta_log").mkdir()
    (tmp_path / "outside/t/_delta_log/00000000000000000000.json").write_text("{}")
    with pytest.raises(SqlInvalidError, match="does not remove tables"):
        definitions.drop_table(name, location)


def test_a_file_in_place_of_the_storage_is_named(definitions: Definitions, tmp_path: Path) -> None:
    root = Path(str(definitions.settings.storage.root))
    root.write_text("a file")
    with pytest.raises(StorageUnwritableError) as caught:
        add(definitions, TABLE)
    assert caught.value.summary == f"cannot write to the storage: {root} is a file, not a folder"
    assert definitions.find("stream", "other") is None
