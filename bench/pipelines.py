"""The same contents as pipelines of Headrace."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from bench.load import FIELDS, SCHEMA

Content = Literal["raw", "json"]

_SPEC = """\
name: bench
storage: {storage}
libraries:
  - glob: {{include: transformations/**}}
kafka:
  bootstrap.servers: {bootstrap}
"""
_RAW = """\
import headrace as hr


@hr.table
def {name}():
    place = ["_source.topic", "_source.partition", "_source.offset", "_source.timestamp", "_source.headers"]
    return hr.read_kafka("{topic}").select("key", "value", *place)
"""
_JSON = """\
import headrace as hr


@hr.table
def {name}():
    place = ["_source.topic", "_source.partition", "_source.offset", "_source.timestamp"]
    return hr.read_kafka("{topic}", format="json", schema="{schema}").select({fields}, *place)
"""


def write_pipeline(
    folder: Path, bootstrap: str, topic: str, content: Content, name: str = "records", storage: str = "./lake"
) -> Path:
    """Write a pipeline of one flow; its table is ``<storage>/tables/default/<name>``."""
    (folder / "transformations").mkdir(parents=True)
    (folder / "headrace.yml").write_text(_SPEC.format(bootstrap=bootstrap, storage=storage))
    fields = ", ".join(f'"{field}"' for field in FIELDS)
    text = _RAW if content == "raw" else _JSON
    (folder / "transformations" / "records.py").write_text(
        text.format(topic=topic, schema=SCHEMA, fields=fields, name=name)
    )
    return folder


def table_of(folder: Path) -> Path:
    return folder / "lake" / "tables" / "default" / "records"
