"""The README's pipeline is a pipeline."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.declare.loader import load_declarations
from headrace.declare.spec import load_project

README = Path(__file__).parents[3] / "README.md"


def test_the_pipeline_of_the_readme_loads(tmp_path: Path) -> None:
    blocks = re.findall(r"```(?:yaml|python)\n# (\S+)\n(.*?)```", README.read_text(), re.DOTALL)
    assert [name for name, _ in blocks] == ["headrace.yml", "transformations/orders.py"]
    for name, text in blocks:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    declared = load_declarations(load_project(tmp_path), None)  # type: ignore[arg-type]
    assert [one.name.name for one in declared.datasets] == ["orders", "revenue"]
