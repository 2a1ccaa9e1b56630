"""Output on terminals whose encoding lacks characters: nothing fails, and JSON loses nothing."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest

from headrace.cli.encoding import replace_unencodable


def written(text: str, encoding: str, *, is_json: bool = False) -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    replace_unencodable(stream, is_json=is_json)
    stream.write(text)
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


def test_our_own_characters_get_plain_ones() -> None:
    assert written("counts ✓ orders ─┬─▶ gold", "ascii") == "counts ok orders -+-> gold"
    assert written("ranges ✗ … · –", "ascii") == "ranges FAIL ... - -"  # noqa: RUF001
    assert written("✓ · –", "cp1252") == "ok · –"  # noqa: RUF001


def test_characters_of_data_become_escapes() -> None:
    assert written("Zoë 日本", "ascii") == "Zo\\xeb \\u65e5\\u672c"
    document = json.dumps({"name": "Zoë 日本 😀 ✓"}, ensure_ascii=False)
    assert json.loads(written(document, "ascii", is_json=True)) == json.loads(document)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_command_writes_to_such_a_terminal(encoding: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "doctor"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )
    assert done.stdout.decode(encoding).startswith("ok ")
    assert b"Error" not in done.stderr
