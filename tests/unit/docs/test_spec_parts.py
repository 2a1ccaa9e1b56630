"""The parts of a spec that the pages of the docs show can be put into a spec."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.declare.spec import load_project
from object_server import open_buckets

ROOT = Path(__file__).parents[3]
PARTS = [
    pytest.param(text, id=f"{page.stem}:{number}")
    for page in sorted((ROOT / "docs").glob("*.md"))
    for number, text in enumerate(
        re.findall(r"^```yaml\n(?!# )(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    )
]


@pytest.mark.parametrize("text", PARTS)
def test_a_part_of_a_spec_is_accepted(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_buckets(monkeypatch)  # specs of other tests have settings for the same buckets
    for name in re.findall(r"\$\{(\w+)", text):
        monkeypatch.setenv(name, "a value")
    head = "" if text.startswith("name:") else "name: shop\n"
    (tmp_path / "headrace.yml").write_text(head + text)
    load_project(tmp_path / "headrace.yml")


def test_there_are_parts() -> None:
    assert len(PARTS) > 5
