"""What the pipeline makes of its sources, checked without a broker and without data: run `pytest`."""

from pathlib import Path

import pytest

from headrace import Pipeline

FOLDER = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def plan():
    """The resolved pipeline: every query has been analyzed by Spark, and nothing was written."""
    with Pipeline.load(FOLDER, profile="dev") as pipeline:
        yield pipeline.plan(offline=True)


def columns(plan, table):
    """The types of a table's columns, by their names."""
    (schema,) = [schema for name, schema in plan.schemas.items() if name.name == table]
    return {field["name"]: field["type"] for field in schema["fields"]}


def test_the_tables(plan):
    assert {dataset.name.name for dataset in plan.datasets} == {"bronze", "silver", "gold"}


def test_bronze_and_silver_keep_the_place_of_each_record(plan):
    assert all(flow.coordinates is not None for flow in plan.flows)


def test_sums_are_exact(plan):
    assert columns(plan, "silver")["sales"] == "decimal(12,2)"
    assert columns(plan, "gold")["sales"] == "decimal(22,2)"
