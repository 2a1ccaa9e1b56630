"""What helps with errors of Spark: of its ANSI mode, where other platforms have NULL, and of JDBC drivers."""

from __future__ import annotations

import linecache
import re
from collections.abc import Mapping

from headrace.errors import SourceLocation
from headrace.model.project import ANSI_SETTING

_RAISED = re.compile(
    r"\b(?:CAST_INVALID_INPUT|CAST_OVERFLOW|CANNOT_PARSE_(?:TIMESTAMP|DATE|TIME|DECIMAL)|DIVIDE_BY_ZERO"
    r"|REMAINDER_BY_ZERO|(?:BINARY_|INTERVAL_)?ARITHMETIC_OVERFLOW|INTERVAL_DIVIDED_BY_ZERO"
    r"|INVALID_ARRAY_INDEX|INVALID_ARRAY_INDEX_IN_ELEMENT_AT|NUMERIC_VALUE_OUT_OF_RANGE"
    r"|DATETIME_FIELD_OUT_OF_BOUNDS|INVALID_FRACTION_OF_SECOND)(?:\.[A-Z_]+)?\]"
)
"""The conditions of rows for which the older mode gives NULL, as they begin a message of Spark's."""
_REFUSED = re.compile(
    r"DATATYPE_MISMATCH\.(?:BINARY_OP_WRONG_TYPE|BINARY_OP_DIFF_TYPES|DATA_DIFF_TYPES|UNEXPECTED_INPUT_TYPE"
    r"|CAST_WITH_CONF_SUGGESTION)"
)
"""The conditions of queries in which the older mode casts texts."""
_FACT = "Spark's ANSI mode is on here; where a platform has it off by default, {0}"


def is_off(*settings: Mapping[str, str]) -> bool:
    """Whether ANSI mode is off; later settings replace earlier ones."""
    given = [one[ANSI_SETTING] for one in settings if ANSI_SETTING in one]
    return bool(given) and given[-1].strip().lower() == "false"


def explain_condition(condition: str, text: str, location: SourceLocation) -> tuple[list[str], list[str]]:
    """The facts and remedies for an error of planning: none if it is not one of ANSI mode."""
    if _REFUSED.fullmatch(condition) and ('"STRING"' in text or condition.endswith("CONF_SUGGESTION")):
        fact = _FACT.format("Spark casts the texts, and others than numbers give NULL")
        return [fact], ["cast the columns in the query", *_settings(location)]
    return explain_failure(f"{condition}]", location)


def explain_failure(text: str, location: SourceLocation) -> tuple[list[str], list[str]]:
    """The facts and remedies for the message of a batch that has failed: none if it is not of ANSI mode."""
    if _RAISED.search(text) is None:
        return [], []
    functions = "use try_cast, try_divide or another function that gives NULL"
    return [_FACT.format("the value is NULL")], [functions, *_settings(location)]


def _settings(location: SourceLocation) -> list[str]:
    if location.is_sql:
        of_flow = f"above the statement:   SET {ANSI_SETTING} = false;"
    else:
        of_flow = f'in the decorator:   spark_conf={{"{ANSI_SETTING}": "false"}}'
    return [
        f"or turn ANSI mode off for this query, {of_flow}",
        "or for the whole pipeline, in headrace.yml:   compatibility: {ansi: false}",
    ]


_DRIVERS = {
    "postgresql": ("org.postgresql.Driver", "org.postgresql:postgresql:42.7.7"),
    "mysql": ("com.mysql.cj.jdbc.Driver", "com.mysql:mysql-connector-j:9.3.0"),
    "sqlserver": (
        "com.microsoft.sqlserver.jdbc.SQLServerDriver",
        "com.microsoft.sqlserver:mssql-jdbc:12.10.0.jre11",
    ),
    "oracle": ("oracle.jdbc.OracleDriver", "com.oracle.database.jdbc:ojdbc11:23.7.0.25.01"),
    "mariadb": ("org.mariadb.jdbc.Driver", "org.mariadb.jdbc:mariadb-java-client:3.5.3"),
    "snowflake": ("net.snowflake.client.jdbc.SnowflakeDriver", "net.snowflake:snowflake-jdbc:3.24.0"),
    "sqlite": ("org.sqlite.JDBC", "org.xerial:sqlite-jdbc:3.49.1.0"),
}
"""The class and the package of drivers, by the subprotocol of their URLs."""
_NO_CLASS = re.compile(r"(?:ClassNotFoundException: |^)((?:[a-z]\w*\.)+\w*(?:Driver|JDBC))\b")
_NO_DRIVER = "No suitable driver"
_URL = re.compile(r"\bjdbc:(\w+):")


def find_missing(text: str, location: SourceLocation) -> tuple[str, list[str]] | None:
    """The problem and its remedies, if an error of Java tells that a JDBC driver is missing. `location`: a
    line of the query's file, in which the URL of the database is searched."""
    if (found := _NO_CLASS.search(text)) is not None:
        vendor = found[1].split(".")[:2]
        package = next((one for name, one in _DRIVERS.values() if name.split(".")[:2] == vendor), None)
        return f"the JDBC driver was not found: {found[1]}", [_remedy(package)]
    if _NO_DRIVER in text:
        lines = "" if location.file is None else "".join(linecache.getlines(location.file))
        urls = set(_URL.findall(lines))
        name, package = _DRIVERS.get(urls.pop(), ("CLASS", None)) if len(urls) == 1 else ("CLASS", None)
        named = f'name the class of its driver in the query:   .option("driver", "{name}")'
        return f"the JDBC driver was not found: {_NO_DRIVER}", [named, f"and {_remedy(package)}"]
    return None


def _remedy(package: str | None) -> str:
    if package is None:
        return "add its jar to the spec:   configuration: {spark.jars: /path/to/driver.jar}"
    return f'add it to the spec:   configuration: {{spark.jars.packages: "{package}"}}'
