"""Headers of CSV files: found as Spark's parser finds them, and compared with a schema by name."""

from __future__ import annotations

import bz2
import csv
import gzip
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import FileUnreadableError
from headrace.model.declarations import Drift, DriftAction
from headrace.sources.files.by_header import group_by_header
from headrace.sources.files.headers import (
    HeaderRules,
    HeaderSyntax,
    HeaderText,
    find_header,
    find_misplaced,
    first_record,
    lay_out,
)


def split(text: str) -> Sequence[str]:
    return next(csv.reader(text.splitlines(keepends=True)))


@pytest.mark.parametrize(
    ("content", "options", "expected"),
    [
        (b"id,name\n1,a\n", {}, HeaderText("id,name", 1)),
        (b"id,name", {}, HeaderText("id,name", 1)),
        (b"\xef\xbb\xbfid,name\r\n1,a\r\n", {}, HeaderText("id,name", 1)),
        (b" \n\nid,name\n", {}, HeaderText("id,name", 3)),
        (b"# made by hand\nid\n", {"comment": "#"}, HeaderText("id", 2)),
        (b"# made by hand\nid\n", {}, HeaderText("# made by hand", 1)),
        (b"", {}, None),
        (b"\n \n", {}, None),
        ("größe\n".encode("latin-1"), {"encoding": "ISO-8859-1"}, HeaderText("größe", 1)),
        ("id,n\n1,a\n".encode("utf-16"), {"encoding": "UTF-16", "multiLine": "true"}, HeaderText("id,n", 1)),
        (b'id,"full\nname",x\n1,a,b\n', {"multiLine": "true"}, HeaderText('id,"full\nname",x', 1)),
        (b'id,"full\nname",x\n', {}, HeaderText('id,"full', 1)),
        (b"id,'full\nname'\n1\n", {"MULTILINE": "TRUE", "quote": "'"}, HeaderText("id,'full\nname'", 1)),
        (b"id|name@1|a@", {"lineSep": "@"}, HeaderText("id|name", 1)),
        (b"id\rname\r", {}, HeaderText("id", 1)),
    ],
)
def test_a_header_is_found_as_spark_finds_it(
    content: bytes, options: dict[str, str], expected: HeaderText | None
) -> None:
    assert first_record(BytesIO(content), HeaderSyntax.of(options)) == expected


def zstd(content: bytes) -> bytes:
    return bytes(pa.compress(content, codec="zstd", asbytes=True))


@pytest.mark.parametrize(
    ("end", "pack"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".zst", zstd)]
)
def test_a_compressed_file_has_a_header_too(tmp_path: Path, end: str, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / f"a.csv{end}"
    path.write_bytes(pack(b"id,name\n1,a\n"))
    assert find_header(str(path), HeaderSyntax()) == HeaderText("id,name", 1)


def test_a_header_that_cannot_be_read_is_not_known(tmp_path: Path) -> None:
    for name, content in {"a.csv.gz": b"no gzip", "a.csv.snappy": b"id\n"}.items():
        (tmp_path / name).write_bytes(content)
        assert find_header(str(tmp_path / name), HeaderSyntax()) is None
    (tmp_path / "a.csv").write_bytes(b"id\n")
    assert find_header(str(tmp_path / "a.csv"), HeaderSyntax(encoding="no such encoding")) is None
    assert find_header(str(tmp_path / "gone.csv"), HeaderSyntax()) is None


def test_columns_are_found_by_name_in_any_order_and_letter_case() -> None:
    rules = HeaderRules(columns=("id", "Name"))
    assert lay_out(("ID", "name"), rules).is_planned
    other = lay_out(("extra", "NAME", "id"), rules)
    assert (other.positions, other.unknown, other.is_planned) == ((2, 1), (0,), False)
    fewer = lay_out(("id",), rules)
    assert (fewer.positions, fewer.is_planned, fewer.is_foreign) == ((0, None), False, False)
    assert lay_out(("1", "ada"), rules).is_foreign
    exact = HeaderRules(columns=("id",), ignores_case=False)
    assert lay_out(("ID", "id"), exact).positions == (1,)


def test_files_without_a_column_of_the_schema_are_read_if_their_columns_are_taken_up() -> None:
    def loses(names: str, *actions: DriftAction | None, **columns: DriftAction) -> bool:
        rules = HeaderRules(columns=("id", "name"), drift=Drift(*actions, columns=columns))
        return rules.loses_all(lay_out(names.split(","), rules))

    assert not loses("id,x")
    assert loses("x,y")
    assert loses("x,y", "fail")
    assert not loses("x,y", "evolve")
    assert not loses("x,y", "rescue", y="evolve")
    assert loses("x,y", None, y="evolve")
    # A file without a header.
    assert loses("7,ada", "evolve")
    assert loses("ada,-1.5e3", "rescue")
    assert loses("ada,2026-11-26", "evolve")
    assert loses("ada,2026-11-26 21:06:07", "evolve")
    assert loses("ada,TRUE", "evolve")
    assert loses("ada,", "evolve")
    assert loses("123e4567-e89b-12d3-a456-426614174000,ada", "evolve")


def test_a_column_without_a_name_has_its_number_as_name() -> None:
    layout = lay_out(("", "id"), HeaderRules(columns=("_c0", "id")))
    # Spark would compare the name in the header with that of the schema.
    assert (layout.positions, layout.is_planned) == ((0, 1), False)


def test_files_are_grouped_by_their_columns_and_a_repeated_name_is_refused() -> None:
    rules = HeaderRules(columns=("a", "b"))
    texts = {"1": "a,b", "2": "b,a", "3": '"a",b', "4": None, "5": "b,a"}

    def find(path: str) -> HeaderText | None:
        text = texts[path]
        return None if text is None else HeaderText(text, 1)

    groups = group_by_header(texts, find, split, rules)
    assert [group.paths for group in groups] == [("1", "3", "4"), ("2", "5")]
    texts["5"] = "a,A"
    with pytest.raises(FileUnreadableError, match="line 1, has the name `A` twice") as caught:
        group_by_header(texts, find, split, rules)
    assert caught.value.params == {"path": "5", "line": 1}


def test_a_column_at_another_position_is_found() -> None:
    def find(header: str, columns: str) -> str | None:
        return find_misplaced(header.split(","), columns.split(","), str.lower)

    assert find("id,name", "ID,name") is None
    # Other names: the user names the columns.
    assert find("a,b", "id,name") is None
    assert find("id,name,more", "id,name") is None
    assert find("name,id", "id,name") == "id"
    assert find("new,id,name", "id,name") == "id"
    # A header can have a name twice.
    assert find("id,id", "id,other") is None
    assert find("x,id,id", "x,y,id") is None


def test_the_rules_of_a_read_are_an_option() -> None:
    drift = Drift("evolve", {"secret": "fail", "note": "rescue"})
    rules = HeaderRules(
        columns=("id",), drift=drift, infers_types=True, ignores_case=False, evolving={"number": 1}
    )
    assert HeaderRules.of(rules.to_option()) == rules
    assert HeaderRules.of({"header": "true"}) is None
    assert [rules.action(name) for name in ("new", "secret", "note")] == ["evolve", "fail", "rescue"]
