"""The plugin: found by pytest, and cheap where nobody uses it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


def test_pytest_finds_the_fixture() -> None:
    points = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"]["pytest11"]
    (module,) = points.values()
    assert hasattr(import_module(module), "run_pipeline")


def test_the_plugin_costs_other_tests_nothing() -> None:
    code = (
        "import sys, headrace.testing.plugin\n"
        "assert not {'pyspark', 'py4j', 'deltalake', 'pyarrow', 'confluent_kafka'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
