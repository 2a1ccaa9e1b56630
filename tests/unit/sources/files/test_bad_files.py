"""Where a record that does not parse stands in its file."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import pytest

from headrace.sources.files.bad_files import _PATH, _print_remedy, find_line

TEXT = '\ufeffid,name\r\n1,a\r\n2,"b\r\nc"\r\nx,d\r\n'


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.csv.bz2"])
def test_a_record_is_found_by_its_text(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    data = TEXT.encode()
    path.write_bytes(
        gzip.compress(data) if name.endswith("gz") else bz2.compress(data) if name.endswith("2") else data
    )
    assert find_line(str(path), "id,name") == 1
    assert find_line(str(path), '2,"b\nc"') == 3
    assert find_line(str(path), "x,d") == 5
    assert find_line(str(path), "not there") is None


def test_a_file_in_a_bucket_is_named_with_a_command_that_prints_its_line() -> None:
    (plain,) = _print_remedy("s3://lake/in/a b.csv", 3)
    assert plain == "print the line:   aws s3 cp 's3://lake/in/a b.csv' - | sed -n 3p"
    (packed,) = _print_remedy("s3://lake/a.csv.gz", 3)
    assert packed.endswith("aws s3 cp s3://lake/a.csv.gz - | gunzip -c | sed -n 3p")
    for uri in ("s3a://lake/in/a.csv", "file:///in/a.csv"):
        found = _PATH.search(f"Encountered error while reading file {uri}. Details")
        assert found is not None and found[1] == uri


def test_a_long_record_is_found_by_its_beginning_and_by_its_fault(tmp_path: Path) -> None:
    begins = '{"note": "' + "a" * 200
    path = tmp_path / "a.json"
    path.write_text(f'{begins}"}}\n{begins}\n')
    assert find_line(str(path), begins[:120], is_prefix=True) == 2


def test_a_file_that_is_broken_or_gone_has_no_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b"{}\n" * 100)[:20])
    assert find_line(str(path), "x") is None
    assert find_line(str(tmp_path / "gone"), "x") is None
