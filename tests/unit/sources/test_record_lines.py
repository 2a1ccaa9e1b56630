"""Lines of files as records: sent as they stand, or refused with their place."""

from __future__ import annotations

import io
import itertools
import json
from pathlib import Path

import pytest

from headrace.errors import RecordInvalidError
from headrace.sources.kafka.producer import FileFormat, RecordLines, open_records


def lines(data: str | bytes, form: FileFormat = "json", key: str | None = None) -> RecordLines:
    return RecordLines(io.BytesIO(data.encode() if isinstance(data, str) else data), "e", form, key)


def fault(data: str | bytes, form: FileFormat = "json", key: str | None = None) -> RecordInvalidError:
    with pytest.raises(RecordInvalidError) as raised:
        list(lines(data, form, key))
    return raised.value


def test_json_is_sent_as_it_stands() -> None:
    text = '{"id": 1,  "sum": 12.50, "name": "ß"}\n{"id":90071992547409930}\r\n[1]'
    assert [record.value.decode() for record in lines(text)] == text.replace("\r", "").split("\n")


def test_empty_lines_are_no_records_and_are_counted() -> None:
    found = lines('\n{"id": 1}\n  \n\n{"id": 2}\n')
    assert [record.line for record in found] == [2, 5]
    assert found.skipped == 3


@pytest.mark.parametrize(
    ("data", "line", "column"),
    [
        ('{"id": 1}\n{"id": 2\n', 2, 9),
        ('{"id": NaN}', 1, None),
        (b'{"a": "\xff"}', 1, 8),
        ("[" * 100_000, 1, None),
    ],
)
def test_what_is_no_json_is_named_by_its_place(data: str | bytes, line: int, column: int | None) -> None:
    error = fault(data)
    assert error.location is not None
    assert (error.location.path, error.location.line, error.location.column) == ("e", line, column)


def test_a_document_over_several_lines_is_told_how_to_become_lines() -> None:
    assert "jq" in fault('[\n{"id": 1}\n]').remedies[0]


def test_the_key_is_a_field_as_the_file_writes_it() -> None:
    text = '{"k": "ß"}\n{"k": 12.50}\n{"k": true}\n{"k": 7}\n'
    assert [record.key for record in lines(text, key="k")] == ["ß".encode(), b"12.50", b"true", b"7"]
    assert [record.key for record in lines('{"a": {"b": 1}}\n{"a.b": 2}', key="a.b")] == [b"1", b"2"]


@pytest.mark.parametrize(
    "row", ['{"id": 1}', '{"customer": null}', '{"customer": [1]}', "3", r'{"customer": "\ud800"}']
)
def test_a_record_without_its_key_is_refused(row: str) -> None:
    error = fault('{"customer": "ada"}\n' + row, key="customer")
    assert error.params == {"path": "e", "line": 2}


def test_a_misspelt_key_is_answered_with_the_field_that_was_meant() -> None:
    assert fault('{"customer": 1}', key="custmer").remedies == ("did you mean `customer`?",)
    assert fault("id,customer\n1,ada\n", "csv", key="custmer").remedies == ("did you mean `customer`?",)


def test_csv_rows_become_objects_that_lose_no_digit() -> None:
    text = '\ufeffid,name,zip,sum,ok,note\n1,"a, ""b""",01234,12.50,true,\n2,"two\nlines",9,-0,no,x\n'
    found = lines(text, "csv", key="zip")
    first, second = list(found)
    assert (
        first.value
        == b'{"id": 1, "name": "a, \\"b\\"", "zip": "01234", "sum": 12.50, "ok": true, "note": null}'
    )
    assert json.loads(second.value)["name"] == "two\nlines"
    assert (first.key, first.line, second.line) == (b"01234", 2, 3)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("id,name\n1,a\n2\n", 3),
        ("id,name\n1,a,b\n", 2),
        ("id,id\n1,2\n", 1),
        ("id,\n1,2\n", 1),
        ('id\n"open\n', 2),
    ],
)
def test_csv_that_does_not_fit_its_header_is_refused(text: str, line: int) -> None:
    assert fault(text, "csv").params["line"] == line


def test_text_is_any_bytes_but_the_line_break() -> None:
    assert [record.value for record in lines(b"\xff\x00\n no json \n", "text")] == [b"\xff\x00", b" no json "]


def test_a_file_is_read_by_its_ending(tmp_path: Path) -> None:
    (tmp_path / "e.CSV").write_text("id\n1\n")
    (tmp_path / "e.log").write_text('{"id": 2}\n')
    for name, value in (("e.CSV", b'{"id": 1}'), ("e.log", b'{"id": 2}')):
        with open_records(tmp_path / name, io.BytesIO()) as found:
            assert [record.value for record in found] == [value]
    assert [record.value for record in open_records(None, io.BytesIO(b"3\n"))] == [b"3"]


def test_a_limit_asks_for_no_record_more() -> None:
    assert len(list(itertools.islice(lines("1\n2\nbroken"), 2))) == 2
