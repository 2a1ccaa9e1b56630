"""What helps if the JDBC driver of a database is missing."""

from __future__ import annotations

import re

_PACKAGES = {
    "org.postgresql.": "org.postgresql:postgresql:42.7.7",
    "com.mysql.": "com.mysql:mysql-connector-j:9.3.0",
    "com.microsoft.sqlserver.": "com.microsoft.sqlserver:mssql-jdbc:12.10.0.jre11",
    "oracle.jdbc.": "com.oracle.database.jdbc:ojdbc11:23.7.0.25.01",
    "org.mariadb.": "org.mariadb.jdbc:mariadb-java-client:3.5.3",
    "net.snowflake.": "net.snowflake:snowflake-jdbc:3.24.0",
    "org.sqlite.": "org.xerial:sqlite-jdbc:3.49.1.0",
}
"""The packages of drivers, by the beginning of their classes."""
_NO_CLASS = re.compile(r"(?:ClassNotFoundException: |^)((?:[a-z]\w*\.)+\w*Driver)\b")
_NO_DRIVER = "No suitable driver"


def find_missing(text: str) -> tuple[str, list[str]] | None:
    """The problem and its remedies, if an error of Java tells that a JDBC driver is missing."""
    if (found := _NO_CLASS.search(text)) is not None:
        name = found[1]
        package = next((one for start, one in _PACKAGES.items() if name.startswith(start)), None)
        return f"the JDBC driver was not found: {name}", [_remedy(package)]
    if _NO_DRIVER in text:
        named = 'name its class in the query:   .option("driver", "org.postgresql.Driver")'
        return f"the JDBC driver was not found: {_NO_DRIVER}", [named, f"and {_remedy(None)}"]
    return None


def _remedy(package: str | None) -> str:
    if package is None:
        return "add its jar to the spec:   configuration: {spark.jars: /path/to/driver.jar}"
    return f'add it to the spec:   configuration: {{spark.jars.packages: "{package}"}}'
