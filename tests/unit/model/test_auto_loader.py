"""The options of Auto Loader have the defaults that Databricks documents.

The pages are below https://docs.databricks.com/: `options` is
en/ingestion/cloud-object-storage/auto-loader/options.html, `schema` is
en/ingestion/cloud-object-storage/auto-loader/schema.html, and `read_files` is
sql/language-manual/functions/read_files.html.
"""

from __future__ import annotations

import pytest

from headrace.declare.auto_loader import AutoLoaderError, parse_options, split_hints


def test_the_defaults_without_a_schema() -> None:
    loader = parse_options({"cloudFiles.format": "JSON"}, has_schema=False)
    assert loader.format == "json"
    # `options`, cloudFiles.inferColumnTypes: false, so that columns of JSON and CSV are strings.
    assert loader.infers_types is False
    # `schema`: _rescued_data is added where the schema is inferred.
    assert loader.rescued == "_rescued_data"
    # `options`, cloudFiles.schemaEvolutionMode: addNewColumns if there is no schema.
    assert loader.mode == "addnewcolumns"
    # `options`, cloudFiles.partitionColumns: none; the folders decide.
    assert loader.partitions is None
    assert (loader.limits, loader.options, loader.unused) == ({}, {}, ())


def test_the_defaults_with_a_schema() -> None:
    loader = parse_options({"cloudFiles.format": "csv"}, has_schema=True)
    # `schema`: no rescued data column unless rescuedDataColumn names it; no evolution.
    assert (loader.rescued, loader.mode) == (None, "none")
    named = parse_options({"cloudFiles.format": "csv", "rescuedDataColumn": "other"}, has_schema=True)
    assert named.rescued == "other"


def test_read_files_infers_types_by_default() -> None:
    # `read_files`, inferColumnTypes: true.
    assert parse_options({"format": "csv"}, has_schema=False, infers_types=True).infers_types is True
    off = parse_options({"inferColumnTypes": "false"}, has_schema=False, infers_types=True)
    assert off.infers_types is False


def test_options_of_clouds_have_no_effect_and_those_of_the_format_are_passed_on() -> None:
    options = {
        "cloudFiles.format": "json",
        "cloudFiles.schemaLocation": "/x",
        "cloudFiles.useNotifications": "true",
        "cloudFiles.backfillInterval": "1 day",
        "cloudFiles.resourceTag.team": "a",
        "cloudFiles.includeExistingFiles": "true",
        "cloudFiles.maxBytesPerTrigger": "10g",
        "mode": "PERMISSIVE",
        "multiLine": "true",
        "pathGlobFilter": "*.json",
    }
    loader = parse_options(options, has_schema=False)
    assert set(loader.unused) == {*list(options)[1:5], "mode"}
    assert loader.options == {"multiLine": "true"}
    assert loader.limits == {"maxBytesPerTrigger": str(10 << 30)}
    assert loader.glob == "*.json"


@pytest.mark.parametrize(
    ("option", "value", "has_schema"),
    [
        ("cloudFiles.includeExistingFiles", "false", False),
        ("cloudFiles.allowOverwrites", "true", False),
        ("cloudFiles.cleanSource", "DELETE", False),
        ("readerCaseSensitive", "false", False),
        ("singleVariantColumn", "v", False),
        ("cloudFiles.schemaEvolutionMode", "addNewColumnsWithTypeWidening", False),
        # `schema`: addNewColumns is not allowed where the schema is given.
        ("cloudFiles.schemaEvolutionMode", "addNewColumns", True),
        ("cloudFiles.maxFilesPerTrigger", "many", False),
    ],
)
def test_an_option_that_would_change_results_is_refused(option: str, value: str, has_schema: bool) -> None:
    with pytest.raises(AutoLoaderError) as caught:
        parse_options({"cloudFiles.format": "json", option: value}, has_schema=has_schema)
    assert caught.value.option == option
    assert str(caught.value) == caught.value.problem


def test_hints_have_dotted_and_quoted_names() -> None:
    # `schema`: hints have the form of DDL; fields of structs, arrays and maps are dotted.
    text = (
        "id INT, at.day DATE,`a.b` STRING, x.element.y DECIMAL(10, 2), m MAP<STRING, STRUCT<a: INT, b: INT>>"
    )
    assert split_hints(text) == (
        (("id",), "INT"),
        (("at", "day"), "DATE"),
        (("a.b",), "STRING"),
        (("x", "element", "y"), "DECIMAL(10, 2)"),
        (("m",), "MAP<STRING, STRUCT<a: INT, b: INT>>"),
    )
    with pytest.raises(ValueError, match="id"):
        split_hints("id")


def test_infer_schema_with_the_prefix_is_noted() -> None:
    given = {"cloudFiles.format": "csv", "cloudFiles.inferSchema": "true"}
    loader = parse_options(given, has_schema=False)
    assert (loader.unused, dict(loader.options)) == (("cloudFiles.inferSchema",), {})
