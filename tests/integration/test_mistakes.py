"""Remedies as a user meets them: each printed command is run as printed, until the pipeline is healthy."""

from __future__ import annotations

import logging
import re
import shlex
import shutil
from pathlib import Path

import pytest

from headrace.cli.main import run
from landing import Site

CHAIN = """
import headrace as hr
from headrace import spark

@hr.table
def visits():
    return hr.read_files("landing", format="json", schema="id LONG, page STRING")

@hr.table
def pages():
    return hr.read_table_stream("visits")

@hr.table
def shown():
    return hr.read_table_stream("pages")

@hr.materialized_view
def total():
    return spark.read.table("shown").selectExpr("count(*) AS visits")
"""
_COMMAND = re.compile(r"\bheadrace ([a-z].*)$")
_LONGEST = 4
"""Commands that a user types, at most, from an error to a healthy pipeline."""


class User:
    """Types commands in the folder of a pipeline, and follows the first remedy that is a command."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.capsys = capsys
        self.typed: list[str] = []

    def types(self, command: str) -> tuple[int, str]:
        self.typed.append(command)
        self.capsys.readouterr()
        asks = ["--yes"] if command.split()[0] in ("full-refresh", "reset", "tables") else []
        code = run([*shlex.split(command), *asks, "--project", str(self.root)])
        out, err = self.capsys.readouterr()
        return code, out + err

    def follows(self, command: str) -> None:
        """Type a command, and then what its error prints, until a command succeeds."""
        for _ in range(_LONGEST):
            code, text = self.types(command)
            if code == 0:
                return
            # There is no copy of a folder to restore.
            lines = [line for line in text.splitlines() if "restore" not in line]
            found = [one[1] for line in lines if (one := _COMMAND.search(line))]
            commands = [one for one in found if not one.startswith("explain ")]
            assert commands, f"no remedy is a command:\n{text}"
            command = commands[0]
            assert command == "run" or command not in self.typed, f"in a circle: {self.typed}\n{text}"
        raise AssertionError(f"not healthy after {self.typed}")


@pytest.fixture
def user(site: Site, capsys: pytest.CaptureFixture[str]) -> User:
    return User(site.root, capsys)


@pytest.mark.parametrize(
    ("first", "deleted", "whole"),
    [
        ("run", "visits", False),
        ("full-refresh pages", "visits", False),
        ("run", "pages", False),
        ("full-refresh visits", "pages", True),
    ],
)
def test_a_deleted_table_with_readers(site: Site, user: User, first: str, deleted: str, whole: bool) -> None:
    """`whole`: whether its checkpoint is deleted with it."""
    site.write(CHAIN)
    site.put("a.json", {"id": 1, "page": "p"}, {"id": 2, "page": "q"})
    assert user.types("run")[0] == 0
    name = site.name(deleted)
    shutil.rmtree(site.storage.table(name))
    if whole:
        shutil.rmtree(site.storage.flow_checkpoints(name, deleted))
    site.put("b.json", {"id": 3, "page": "p"})
    user.typed.clear()
    user.follows(first)
    user.follows("run")
    for _ in range(2):
        assert user.types("run")[0] == 0
        for table in ("visits", "pages", "shown"):
            assert sorted(row["id"] for row in site.rows(table)) == [1, 2, 3]
        assert site.rows("total") == [{"visits": 3}]
    assert user.types("verify")[0] == 0


def test_a_misspelt_column_of_an_expectation_prints_one_error(
    site: Site, user: User, caplog: pytest.LogCaptureFixture
) -> None:
    site.write(
        'import headrace as hr\n\n@hr.table\n@hr.expect("fair", "amuont > 0")\n'
        'def visits():\n    return hr.read_files("landing", format="json", schema="id LONG, amount LONG")\n'
    )
    site.put("a.json", {"id": 1, "amount": 2})
    loggers = [logging.getLogger(f"{name}QueryContextLogger") for name in ("SQL", "DataFrame")]
    for logger in loggers:
        logger.addHandler(caplog.handler)
    try:
        for command in ("plan", "run"):
            code, text = user.types(command)
            assert (code, text.count("error[COLUMN_NOT_FOUND]")) == (2, 1)
            assert "did you mean `amount`?" in text
        assert [record for record in caplog.records if record.name.endswith("QueryContextLogger")] == []
    finally:
        for logger in loggers:
            logger.removeHandler(caplog.handler)


RENAMED = """
import headrace as hr

hr.create_streaming_table("visits")

@hr.append_flow(target="visits")
def NAME():
    return hr.read_files("landing", format="json", schema="id LONG, page STRING")
"""


def test_a_renamed_flow_continues_with_the_command_that_plan_names(site: Site, user: User) -> None:
    site.write(RENAMED.replace("NAME", "web"))
    site.put("a.json", {"id": 1, "page": "p"})
    assert user.types("run")[0] == 0
    site.write(RENAMED.replace("NAME", "shop"))
    site.put("b.json", {"id": 2, "page": "p"})
    _, plan = user.types("plan")
    assert "`headrace run --rename-flow web=shop`" in plan
    user.follows("run")
    assert site.ids() == [1, 2]
    assert user.typed[-1].startswith("run --rename-flow web=shop")
    site.write(
        "import headrace as hr\nfrom headrace import spark\n\n"
        "@hr.materialized_view\ndef pages():\n    return spark.range(1)\n"
    )
    name = site.name().short
    _, plan = user.types("plan")
    assert f'name="{name}"' in plan and f"`headrace tables {name} --remove`" in plan
    assert user.types("run")[0] == 0
    assert user.types(f"tables {name} --remove")[0] == 0
    assert not site.storage.table(site.name()).exists()
