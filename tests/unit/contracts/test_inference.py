"""The schema of files, inferred through the command line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import run
from headrace.contracts.inference import find_files, infer_files, parse_cell

Infer = Callable[..., Any]


@pytest.fixture
def infer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Infer:
    """Call ``headrace infer`` in an empty folder; returns its JSON."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert run(["infer", *arguments, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return call


def write(path: str, text: str | bytes) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(text.encode() if isinstance(text, str) else text)


def test_json_files_of_a_folder(infer: Infer) -> None:
    write("in/a.jsonl", '\ufeff{"id": 1}\n\n{"id": "x", "at": "2026-11-20"}\r\n{\n')
    write("in/b.json.gz", gzip.compress(b'{"id": 2}'))
    write("in/_SUCCESS.json", "no")
    found = infer("./in")
    assert (found["records"], found["corrupt"], found["ddl"]) == (3, 1, "id STRING, at DATE")
    assert [one["position"] for one in found["conflicts"][0]["examples"]] == ["in/a.jsonl:1", "in/a.jsonl:3"]
    assert found["corrupt_records"][0]["position"] == "in/a.jsonl:4"
    assert found["usage"] == 'hr.read_files("in", format="json", schema="schemas/in.json")'
    assert Path("schemas/in.json").exists()


def test_a_type_that_few_values_have_is_left_out_and_reported(infer: Infer) -> None:
    rows = [{"id": n, "lines": [{"price": 1.5}]} for n in range(100)]
    write("in/a.jsonl", "\n".join(map(json.dumps, [*rows, {"id": "x1", "lines": [{"price": "free"}]}])))
    assert infer("./in")["ddl"] == "id STRING, lines ARRAY<STRUCT<price: STRING>>"
    Path("schemas/in.json").unlink()
    assert infer("./in", "--tolerate", "0.5%")["ddl"].startswith("id STRING")
    Path("schemas/in.json").unlink()
    found = infer("./in", "--tolerate", "1%")
    assert found["ddl"] == "id LONG, lines ARRAY<STRUCT<price: DOUBLE>>"
    assert found["conflicts"] == []
    assert [(one["field"], one["problem"], one["type"]) for one in found["tolerated"]] == [
        ("id", "1 of 101 values have another type; their records are bad", "LONG"),
        ("lines[].price", "1 of 101 values have another type; their records are bad", "DOUBLE"),
    ]
    assert found["tolerated"][0]["examples"][0]["position"] == "in/a.jsonl:101"
    infer("./in", "--tolerate", "60%", code=2)


def test_csv_files_with_folders_that_are_columns(infer: Infer) -> None:
    rows = b'id,name,zip,ok\n1,"a\nb",01097,true\n2,,10115,false\n3,x\n4,\xff,1,\n'
    write("in/day=2026-11-20/part=a%2Fb/1.csv", rows)
    write("in/day=2026-11-21/part=7/2.csv", "id,name,zip,ok\n2.5,c,01097,\n")
    found = infer("in/")
    assert found["ddl"] == "id DOUBLE, name STRING, zip STRING, ok BOOLEAN, day DATE, part STRING"
    assert [(one["position"][-7:], one["problem"]) for one in found["corrupt_records"]] == [
        ("1.csv:5", "2 values for 4 columns"),
        ("1.csv:6", "not valid UTF-8"),
    ]


def test_names_of_a_csv_header_are_kept_as_they_are(infer: Infer) -> None:
    write("in/a.csv", "\ufeffid, name\n1,a\n")
    assert infer("./in/a.csv")["ddl"] == "id LONG, ` name` STRING"


def test_other_folders_are_read_with_recursive(infer: Infer) -> None:
    write("in/deep/a.json", '{"id": 1}')
    assert infer("./in")["usage"].startswith('hr.read_files("in", format="json", recursive=True, ')


def test_a_sample_reads_the_first_records_of_files_that_are_spread_evenly(tmp_path: Path) -> None:
    for number in range(10):
        write(f"{tmp_path}/in/{number}.json", "\n".join('{"id": 1}' for _ in range(50)))
    assert infer_files(find_files(tmp_path / "in"), 100).records == 100
    assert infer_files(find_files(tmp_path / "in"), 3).records == 3


def test_what_is_no_folder_of_one_format_is_refused(infer: Infer) -> None:
    write("in/a.json", "{}")
    write("in/a.csv", "a\n1\n")
    assert infer("./in", code=2)["error"]["params"]["formats"] == ["csv", "json"]
    assert infer("./no", code=2)["error"]["code"] == "FILES_NOT_FOUND"
    assert infer("./in/a.json", code=2)["error"]["code"] == "SCHEMA_NOT_INFERRED"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("7", 7),
        ("-0.5", -0.5),
        ("007", "007"),
        ("1e5", "1e5"),
        ("true", True),
        ("9" * 200, "9" * 200),
    ],
)
def test_cells(text: str, value: Any) -> None:
    assert parse_cell(text) == value


def test_a_number_with_many_digits_stays_text() -> None:
    assert parse_cell("9" * 5000) == "9" * 5000
