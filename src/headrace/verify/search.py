"""Reads the batches that a sink of Elasticsearch or OpenSearch has recorded, and some of its rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import requests

from headrace.model.names import TableName
from headrace.verify.delta_log import TableLog
from headrace.verify.reader import CannotJudgeError, SinkUnreadError
from headrace.verify.sink_log import build_log, keys_of
from headrace.verify.sink_rows import Key, SinkRow, SinkRows, Wanted
from headrace.verify.stored import StoredPath

_PAGE = 10_000
_STATE = "headrace-sinks"
_DELETED = "headrace_deleted"
_VERSIONS = 1 << 40
"""A document's version has the table's version below it."""


@dataclass(frozen=True)
class _Server:
    options: Mapping[str, str]
    session: requests.Session

    def ask(self, method: str, path: str, body: Any = None, *, is_known: bool = False) -> Any:
        address = self.options.get("url", "http://localhost:9200").rstrip("/")
        answer = self.session.request(method, f"{address}/{path}", json=body, timeout=60)
        if not is_known:
            answer.raise_for_status()
        return json.loads(answer.text, parse_float=Decimal)

    def kept(self) -> dict[str, Any]:
        """What the system keeps of the sink."""
        key = self.options["index"]
        found = self.ask("GET", f"{_STATE}/_doc/{quote(key, safe='')}", is_known=True)
        if not found.get("found"):
            raise SinkUnreadError(f"{key} has no state of it")
        kept: dict[str, Any] = json.loads(found["_source"]["document"])
        return kept


def load_sink_log(
    name: TableName, options: Mapping[str, str], path: StoredPath, access: Mapping[str, Any]
) -> TableLog:
    """The commits of a sink that its server still has; raises `SinkUnreadError`. `path`: where the storage
    would have its table."""
    key = options["index"]
    documents: dict[int, Any] = {}
    with _connected(options) as server:
        kept = server.kept()
        index = f"{key}-headrace-{kept['cleared']}"
        held = server.ask("GET", f"{index}/_settings/index.uuid", is_known=True).get(index, {})
        server.ask("POST", f"{_STATE}/_refresh")
        query: dict[str, Any] = {"size": _PAGE, "query": {"term": {"sink": key}}, "sort": ["version"]}
        while True:
            hits = server.ask("POST", f"{_STATE}/_search", query)["hits"]["hits"]
            documents |= {int(one["sort"][0]): json.loads(one["_source"]["document"]) for one in hits}
            if len(hits) < _PAGE:
                break
            query["search_after"] = hits[-1]["sort"]
    if (last := kept["last"]) is not None:
        documents[int(last["version"])] = last
    is_there = held.get("settings", {}).get("index", {}).get("uuid") == kept["uuid"]
    table_id = f"{kept['state']['table_id']}/{keys_of(options)}/{kept['id'] if is_there else 'lost'}"
    return build_log(name, kept["state"], table_id, documents, path)


def read_rows(name: TableName, options: Mapping[str, str], wanted: Wanted) -> SinkRows:
    """Rows of a sink, then its state; raises `SinkUnreadError` and `CannotJudgeError`."""
    found: dict[Key, SinkRow] = {}
    with _connected(options) as server:
        kept = server.kept()
        index = f"{options['index']}-headrace-{kept['cleared']}"
        _check_index(server, index)
        server.ask("POST", f"{index}/_refresh")
        living = {"bool": {"must_not": {"exists": {"field": _DELETED}}}}
        query = {"function_score": {"query": living, "random_score": {}}}
        body = {"size": min(wanted.size, _PAGE), "query": query, "_source": False}
        hits = server.ask("POST", f"{index}/_search", body)["hits"]["hits"]
        parts, strays = wanted.parts(one["_id"] for one in hits)
        for some in parts:
            answer = server.ask("POST", f"{index}/_mget", {"ids": [id for id, _ in some]})
            for (_, key), one in zip(some, answer["docs"], strict=True):
                if "error" in one:
                    raise SinkUnreadError(f"{index}: {one['error'].get('type')}")
                values = one.get("_source") if one.get("found") else None
                is_row = values is not None and _DELETED not in values
                version = int(one["_version"]) % _VERSIONS if one.get("found") else None
                found[key] = SinkRow(values=values if is_row else None, version=version)
        after = server.kept()
    if after["cleared"] != kept["cleared"] or after["kept_from"] != after["cleared"]:
        raise CannotJudgeError("its full refresh is not complete")
    holder = f"the index {options['index']}"
    return SinkRows(state=after["state"], holder=holder, rows=found, columns=wanted.columns, strays=strays)


def _check_index(server: _Server, index: str) -> None:
    """Refuse an index that can change documents, or does not keep them as they were sent."""
    facts = server.ask("GET", f"{index}?flat_settings=true")[index]
    settings, names = facts["settings"], ("default_pipeline", "final_pipeline", "mode", "mapping.source.mode")
    changes = [name for name in names if settings.get(f"index.{name}", "_none") not in ("_none", "standard")]
    if changes or "_source" in facts["mappings"]:
        raise CannotJudgeError(f"the index {index} can change documents ({', '.join(changes) or '_source'})")


@contextmanager
def _connected(options: Mapping[str, str]) -> Iterator[_Server]:
    try:
        with requests.Session() as session:
            if "user" in options:
                session.auth = (options["user"], options.get("password", ""))
            if "api_key" in options:
                session.headers["Authorization"] = f"ApiKey {options['api_key']}"
            session.verify = options.get("ca_file", True)
            yield _Server(options, session)
    except (requests.RequestException, ValueError) as error:
        raise SinkUnreadError(f"{options['index']}: {type(error).__name__}") from error
