"""Errors of queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from headrace.errors import FeatureUnsupportedError, PathUnmappedError, QueryFailedError, SourceLocation
from headrace.model.project import PathMap, ProjectSettings
from headrace.plan.evaluate import _failed, run_code
from headrace.plan.intercept import Interception
from headrace.plan.modes import Planning


class Refused(AnalysisException):
    def __init__(self, condition: str, message: str = 'not "STRING"') -> None:
        super().__init__(message)
        self.condition = condition

    def getCondition(self) -> str:
        return self.condition


@pytest.mark.parametrize(
    ("condition", "remedy"),
    [
        ("REQUIRES_SINGLE_PART_NAMESPACE", "functions of a catalog do not exist here"),
        ("DATA_SOURCE_NOT_FOUND", "spark.jars.packages"),
        ("OTHER", "correct a.py:3"),
    ],
)
def test_frequent_errors_of_spark_have_a_remedy(condition: str, remedy: str) -> None:
    error = _failed(Refused(condition), Path("/"), "orders", SourceLocation("a.py", 3))
    assert error.code == "QUERY_FAILED"
    assert remedy in error.remedies[0]


def test_a_misspelt_function_has_a_suggestion() -> None:
    text = "Cannot resolve routine `shop`.`lowr` on search path [`system`.`builtin`]."
    error = _failed(Refused("UNRESOLVED_ROUTINE", text), Path("/"), "orders", SourceLocation("a.sql", 3))
    assert error.remedies == ("did you mean `lower`?",)


def test_from_json_without_a_schema_in_sql_is_refused_by_name() -> None:
    error = Refused("INVALID_SCHEMA.NON_STRING_LITERAL", 'The input schema "NULL" is wrong')
    found = _failed(error, Path("/"), "orders", SourceLocation("a.py", 3))
    assert isinstance(found, FeatureUnsupportedError)
    assert found.params == {"what": "from_json"}


class JavaFailed(Exception):
    def __init__(self, message: str) -> None:
        super().__init__("An error occurred while calling o79.load.\n at java.base/java.lang.Thread.run")
        self.java_exception = SimpleNamespace(getMessage=lambda: message)


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("org.postgresql.Driver", 'configuration: {spark.jars.packages: "org.postgresql:postgresql:42.7.7"}'),
        ("com.example.jdbc.Driver", "configuration: {spark.jars: /path/to/driver.jar}"),
        ("No suitable driver", '.option("driver", "com.mysql.cj.jdbc.Driver")'),
    ],
)
def test_a_missing_jdbc_driver_is_an_error_with_the_line_for_the_spec(
    tmp_path: Path, message: str, remedy: str
) -> None:
    file = tmp_path / "a.py"
    file.write_text('def orders():\n    return spark.read.jdbc("jdbc:mysql://db/shop", "orders")\n')
    error = _failed(JavaFailed(message), Path("/"), "orders", SourceLocation("a.py", 2, file=str(file)))
    assert error.summary == f"the query of `orders` failed: the JDBC driver was not found: {message}"
    assert remedy in error.remedies[0]
    assert "java.base" not in str(error)


def test_a_bucket_that_spark_has_no_client_for_has_a_remedy() -> None:
    error = _failed(
        JavaFailed('No FileSystem for scheme "s3"'), Path("/"), "orders", SourceLocation("a.py", 2)
    )
    assert "object_storage: {s3: {region: us-east-1}}" in error.remedies[0]
    error = _failed(
        JavaFailed('No FileSystem for scheme "gs"'), Path("/"), "orders", SourceLocation("a.py", 2)
    )
    assert "object_storage" not in error.remedies[0]


@pytest.mark.parametrize(
    ("file", "setting"),
    [
        ("a.py", 'spark_conf={"spark.sql.ansi.enabled": "false"}'),
        ("a.sql", "SET spark.sql.ansi.enabled = false;"),
    ],
)
@pytest.mark.parametrize("condition", ["DATATYPE_MISMATCH.BINARY_OP_WRONG_TYPE", "CAST_INVALID_INPUT"])
def test_an_error_of_ansi_mode_names_the_setting(file: str, setting: str, condition: str) -> None:
    location = SourceLocation(file, 3, is_sql=file == "a.sql")
    error = _failed(Refused(condition), Path("/"), "orders", location)
    assert "where a platform has it off by default" in error.facts[-1]
    assert setting in error.remedies[-2]
    assert error.remedies[-1].endswith("in headrace.yml:   compatibility: {ansi: false}")


def test_a_query_opens_files_by_mapped_paths(
    tmp_path: Path, make_project: Callable[[], ProjectSettings]
) -> None:
    (tmp_path / "rates.csv").write_text("x")
    settings = replace(make_project(), paths=PathMap({"/Volumes/shop": str(tmp_path)}))
    interception = Interception(settings=settings, mode=Planning())
    at = SourceLocation("a.py", 3)

    def read(path: str) -> Any:
        return run_code(lambda: Path(path).read_text(), interception, name="t", location=at)

    assert read("/Volumes/shop/rates.csv") == "x"
    with pytest.raises(PathUnmappedError) as caught:
        read("/Volumes/other/rates.csv")
    assert "paths: {/Volumes: ./volumes}" in caught.value.remedies[0]
    with pytest.raises(QueryFailedError, match="FileNotFoundError"):
        read("/Volumes/shop/missing.csv")
