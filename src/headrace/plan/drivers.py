"""What helps if the JDBC driver of a database is missing."""

from __future__ import annotations

import linecache
import re

from headrace.errors import SourceLocation

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
