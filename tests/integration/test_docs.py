"""Every page of the docs is true: its files are written, its commands and scripts run, top to bottom.

In a page, a YAML, Python or SQL block whose first line is a comment with a path is a file; a ``console``
block holds commands after ``$``, whose exit code is 0 unless ``# exit code N`` is behind them; another Python
block is a script. Blocks marked ``text`` show what cannot be run here.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient
from markdown_it import MarkdownIt

from headrace.cli.main import run as run_command
from object_server import ObjectServer
from proof.ledger import TIMEOUT_S, settings
from proof.shop import tables_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kinesis_server import KinesisServer

pytestmark = pytest.mark.usefixtures("spark")

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
_PATH = re.compile(r"(?:#|--) (\S+\.(?:py|yml|yaml|sql|ddl|json|jsonl|csv|env|txt)|\.env)$")
_EXIT_CODE = re.compile(r"\s+# exit code (\d+)\b.*$")
_PYTEST = ("-p", "no:cacheprovider", "--rootdir", ".", "--import-mode", "importlib")
_KINDS = {"yaml", "python", "console", "text", "json", "csv", "ini", "sql", "mermaid"}


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    kind: str
    text: str
    line: int

    @property
    def path(self) -> str | None:
        """The file that it is, if it is one."""
        first = self.text.partition("\n")[0].strip()
        found = _PATH.fullmatch(first)
        return found[1] if found else None


def blocks(page: Path) -> Iterator[Block]:
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        if token.type == "fence":
            assert token.map is not None
            yield Block(token.info.strip(), token.content, token.map[0] + 1)


def _forget_tables(spark: SparkSession) -> None:
    """Other tests, too, have left names in the session; the tables themselves stay where they lie."""
    for table in tables_of(spark):
        spark.sql(f"DROP TABLE default.`{table}`")


@pytest.fixture
def own_names(bootstrap: str, spark: SparkSession) -> Iterator[None]:
    """The pages share a broker and a session, and each begins with empty ones."""
    admin = AdminClient(settings(bootstrap))
    before = set(admin.list_topics(timeout=TIMEOUT_S).topics)
    _forget_tables(spark)
    yield
    _forget_tables(spark)
    made = [topic for topic in admin.list_topics(timeout=TIMEOUT_S).topics if topic not in before]
    for future in admin.delete_topics(made).values() if made else ():
        future.result(TIMEOUT_S)


@pytest.fixture
def bucket(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bucket of the page about buckets."""
    if request.getfixturevalue("page").stem == "object-storage":
        server: ObjectServer = request.getfixturevalue("object_server")
        server.reach(monkeypatch)
        server.client.create_bucket(Bucket="shop-lake")


@pytest.fixture
def served_database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database of the page about PostgreSQL, and the server of that about caches."""
    if request.getfixturevalue("page").stem == "postgres":
        monkeypatch.setenv("SHOP_DATABASE", request.getfixturevalue("database").url)
    if request.getfixturevalue("page").stem == "key-stores":
        monkeypatch.setenv("SHOP_CACHE", request.getfixturevalue("redis_server").replace("/0", "/1"))


@pytest.fixture
def streams(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream of the page about Kinesis."""
    if request.getfixturevalue("page").stem == "kinesis":
        server: KinesisServer = request.getfixturevalue("kinesis_server")
        monkeypatch.setenv("STREAM_SERVER", server.url)
        monkeypatch.setenv("STREAM_KEY", server.settings["access_key_id"])
        monkeypatch.setenv("STREAM_SECRET", server.settings["secret_access_key"])
        server.create("clicks", 2)
        server.put("clicks", *((f"key-{n}", b'{"id": %d, "page": "home"}' % n) for n in range(20)))


@pytest.mark.proof
@pytest.mark.usefixtures("served_database", "streams")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_of_the_docs_does_what_it_says(
    page: Path, tmp_path: Path, own_names: None, bucket: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for block in blocks(page):
        place = f"{page.name}:{block.line}"
        assert block.kind in _KINDS, (
            f"{place}: a block of kind {block.kind!r} is neither run nor marked as text"
        )
        if block.path is not None:
            Path(block.path).parent.mkdir(parents=True, exist_ok=True)
            Path(block.path).write_text(block.text, encoding="utf-8")
        elif block.kind == "python":
            script = tmp_path / "script.py"
            script.write_text("\n" * (block.line - 1) + block.text, encoding="utf-8")
            runpy.run_path(str(script), run_name="__main__")
        elif block.kind == "console":
            for line in block.text.splitlines():
                if line.startswith("$ "):
                    _type(line[2:], place, monkeypatch)


def _type(line: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what a shell would do with the line; Headrace's own commands share this process's Spark."""
    expected = 0
    if found := _EXIT_CODE.search(line):
        expected, line = int(found[1]), line[: found.start()]
    words = shlex.split(line, comments=True)
    match words:
        case ["cd", folder]:
            monkeypatch.chdir(folder)
        case ["export", given]:
            name, _, value = given.partition("=")
            monkeypatch.setenv(name, value)
        case ["headrace", *arguments] if not {"|", ">", "&&"} & set(words):
            code = run_command([os.path.expandvars(argument) for argument in arguments])
            assert code == expected, f"{place}: `{line}` ended with {code}"
        case ["pytest", *arguments]:
            before = set(sys.modules)
            code = pytest.main([*_PYTEST, *arguments])
            # Several pages have a file of tests of the same name.
            for name in [one for one in set(sys.modules) - before if one.startswith("test")]:
                del sys.modules[name]
            assert code == expected, place
        case _:
            environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
            done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True)
            assert done.returncode == expected, f"{place}: `{line}`: {done.stdout}{done.stderr}"
