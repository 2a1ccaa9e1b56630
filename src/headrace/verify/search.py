"""Reads the batches that a sink of Elasticsearch or OpenSearch has recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import requests

from headrace.model.names import TableName
from headrace.verify.delta_log import TableLog
from headrace.verify.reader import SinkUnreadError
from headrace.verify.sink_log import build_log, keys_of
from headrace.verify.stored import StoredPath

_PAGE = 10_000


def load_sink_log(
    name: TableName, options: Mapping[str, str], path: StoredPath, access: Mapping[str, Any]
) -> TableLog:
    """The commits of a sink that its server still has; raises `SinkUnreadError`. `path`: where the storage
    would have its table."""
    key = options["index"]
    documents: dict[int, Any] = {}
    try:
        with requests.Session() as session:
            if "user" in options:
                session.auth = (options["user"], options.get("password", ""))
            if "api_key" in options:
                session.headers["Authorization"] = f"ApiKey {options['api_key']}"
            session.verify = options.get("ca_file", True)
            address = options.get("url", "http://localhost:9200").rstrip("/")
            url = f"{address}/headrace-sinks"
            found = session.get(f"{url}/_doc/{quote(key, safe='')}", timeout=30).json()
            if not found.get("found"):
                raise SinkUnreadError(f"{options['index']} has no state of it")
            kept = json.loads(found["_source"]["document"])
            index = f"{options['index']}-headrace-{kept['cleared']}"
            held = session.get(f"{address}/{index}/_settings/index.uuid", timeout=30).json().get(index, {})
            session.post(f"{url}/_refresh", timeout=30).raise_for_status()
            query: dict[str, Any] = {"size": _PAGE, "query": {"term": {"sink": key}}, "sort": ["version"]}
            while True:
                answer = session.post(f"{url}/_search", json=query, timeout=60)
                answer.raise_for_status()
                hits = answer.json()["hits"]["hits"]
                documents |= {int(one["sort"][0]): json.loads(one["_source"]["document"]) for one in hits}
                if len(hits) < _PAGE:
                    break
                query["search_after"] = hits[-1]["sort"]
    except (requests.RequestException, ValueError) as error:
        raise SinkUnreadError(f"{options['index']}: {type(error).__name__}") from error
    if (last := kept["last"]) is not None:
        documents[int(last["version"])] = last
    is_there = held.get("settings", {}).get("index", {}).get("uuid") == kept["uuid"]
    table_id = f"{kept['state']['table_id']}/{keys_of(options)}/{kept['id'] if is_there else 'lost'}"
    return build_log(name, kept["state"], table_id, documents, path)
