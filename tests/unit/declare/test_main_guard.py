"""`if __name__ == "__main__"` holds where the platform of a file runs it as the main program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.declare.loader import load_declarations
from headrace.declare.spec import load_project
from headrace.errors import NothingDeclaredError
from headrace.model.declarations import Declarations

Load = Callable[..., Declarations]

BODY = """
NAME = __name__

def main():
    @pipelines.table
    def orders():
        return spark.range(1)

{guard}:
    main()
"""
GUARD = 'if __name__ == "__main__"'


@pytest.mark.parametrize(
    "head",
    [
        "import dlt as pipelines",
        "from databricks import pipelines",
        "from pyspark import pipelines",
        "import pyspark.pipelines as pipelines",
        "# Databricks notebook source\nimport headrace as pipelines",
    ],
)
@pytest.mark.parametrize("guard", [GUARD, "if '__main__' == __name__ and NAME"])
def test_the_condition_holds_in_notebooks_and_files_of_pipelines(load: Load, head: str, guard: str) -> None:
    found = load(head + BODY.format(guard=guard))
    assert [one.name.name for one in found.datasets] == ["orders"]
    line = head.count("\n") + 6
    assert str(found.datasets[0].location) == f"transformations/tables.py:{line}"


def test_a_notebook_that_is_run_by_another_one_is_the_main_program_too(load: Load) -> None:
    first = "# Databricks notebook source\n# MAGIC %run ../lib/other\n"
    found = load(
        {
            "transformations/a.py": first,
            "lib/other.py": "import headrace as pipelines" + BODY.format(guard=GUARD),
        }
    )
    assert [one.name.name for one in found.datasets] == ["orders"]


def test_nothing_declared_names_a_guard_that_does_not_hold(write: Callable[..., Path]) -> None:
    root = write({"transformations/a.py": "import headrace as pipelines" + BODY.format(guard=GUARD)})
    with pytest.raises(NothingDeclaredError) as caught:
        load_declarations(load_project(root), lambda: None)  # type: ignore[arg-type,return-value]
    assert any(fact.startswith("transformations/a.py:9: `if __name__") for fact in caught.value.facts)
    assert caught.value.remedies[0] == "move the declarations out of the `if`"
