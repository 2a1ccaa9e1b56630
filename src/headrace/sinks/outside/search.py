"""Rows as documents of Elasticsearch or OpenSearch: a document never goes back.

Each full refresh begins a new index. Readers use an alias that hides deleted documents. A deleted document
stays for some days with its version, which the system itself would forget after a minute.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from urllib.parse import quote, urlsplit

import requests

from headrace.sinks.outside.by_key import invalid, number_of
from headrace.sinks.outside.stateful import SinkState
from headrace.sinks.outside.versioned import KEPT, TOMBSTONE_S, Document, SendError, Stored, VersionedSink
from headrace.sinks.target import SinkSpec

STATE = "headrace-sinks"
"""The index with the state of all sinks."""
_DELETED = "headrace_deleted"
"""The field of a deleted document: when it was deleted, in milliseconds since the epoch."""
_TIMEOUT_S = (10, 120)
_FIRST: Mapping[str, Any] = {"last": None, "uuid": None, "id": None, "cleared": 0}
"""The first values of the sink's document."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,199}")
_LONGEST_KEY = 512
_EPOCH = 1 << 40
"""Versions of a table are smaller."""
_MOST = 10_000  # documents of one answer


@dataclass(frozen=True, kw_only=True)
class SearchClient:
    """The connection of a sink."""

    url: str
    index: str
    user: str | None = None
    password: str | None = None
    api_key: str | None = None
    ca_file: str | None = None

    def index_of(self, epoch: int) -> str:
        return f"{self.index}-headrace-{epoch}"

    def writer_of(self, epoch: int) -> str:
        """The alias that tasks write to; after the next full refresh it is gone."""
        return f"{self.index_of(epoch)}-write"

    @contextmanager
    def connect(self) -> Iterator[requests.Session]:
        with requests.Session() as session:
            if self.user is not None:
                session.auth = (self.user, self.password or "")
            if self.api_key is not None:
                session.headers["Authorization"] = f"ApiKey {self.api_key}"
            session.verify = self.ca_file or True
            yield session

    def ask(
        self, session: requests.Session, method: str, path: str, body: Any = None, known: Sequence[int] = ()
    ) -> tuple[int, Any]:
        """The status and the answer of a request. `known`: statuses of errors that the caller expects."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        kind = "application/x-ndjson" if isinstance(body, bytes) else "application/json"
        try:
            answer = session.request(
                method,
                f"{self.url.rstrip('/')}/{path}",
                data=data,
                headers={"Content-Type": kind},
                timeout=_TIMEOUT_S,
            )
            found = answer.json() if answer.content else {}
        except (requests.RequestException, ValueError) as error:
            raise SendError(f"{type(error).__name__}: {urlsplit(self.url).hostname}") from error
        if not answer.ok and answer.status_code not in known:
            raise SendError(f"{method} {path}: {answer.status_code} {_reason(found)}")
        return answer.status_code, found

    def send(self, documents: Iterable[Sequence[Document]], epoch: int, kept_from: int) -> None:
        with self.connect() as session:
            for some in documents:
                self._send(session, some, self.writer_of(kept_from), epoch)

    def try_out(self, documents: Iterable[Sequence[Document]]) -> None:
        name = f"{self.index_of(0)}-try-{uuid.uuid4().hex}"
        with self.connect() as session:
            _, found = self.ask(session, "GET", f"{self.index}/_mapping")
            (mapping,) = found.values()
            self.ask(session, "PUT", name, {**mapping, "aliases": {f"{name}-write": {}}})
            try:
                for some in documents:
                    self._send(session, some, f"{name}-write", 0)
            finally:
                with suppress(SendError):
                    self.ask(session, "DELETE", name)

    def _send(self, session: requests.Session, documents: Sequence[Document], name: str, epoch: int) -> None:
        now_ms, lines = time.time_ns() // 1_000_000, []
        for one in documents:
            if len(one.id.encode()) > _LONGEST_KEY:
                raise SendError(f"the key is longer than {_LONGEST_KEY} bytes", one.id)
            version = epoch * _EPOCH + one.version
            how = {"_id": one.id, "version": version, "version_type": "external_gte"}
            body = json.dumps({_DELETED: now_ms}) if one.body is None else one.body
            lines += [json.dumps({"index": how}), body]
        path = f"{name}/_bulk?require_alias=true&filter_path=errors,items.*.status,items.*.error,items.*._id"
        status, found = self.ask(session, "POST", path, ("\n".join(lines) + "\n").encode(), known=(413,))
        if status == 413 and len(documents) > 1:
            half = len(documents) // 2
            self._send(session, documents[:half], name, epoch)
            self._send(session, documents[half:], name, epoch)
        elif status == 413:
            raise SendError("the document is too large for a request", documents[0].id)
        elif found.get("errors"):
            _check_items([next(iter(one.values())) for one in found["items"]])


def _reason(found: Any) -> str:
    error = found.get("error") if isinstance(found, dict) else None
    if not isinstance(error, dict):
        return str(error or "")
    cause = error.get("caused_by") or {}
    return " ".join(filter(None, (error.get("type"), error.get("reason"), cause.get("reason"))))


def _check_items(items: Iterable[Mapping[str, Any]]) -> None:
    """Raise the error for documents that were not written. A conflict is none: a newer one is there."""
    failed = [one for one in items if one["status"] >= 300 and one["status"] != 409]
    for one in failed:
        if one["status"] == 404:
            raise SendError(_reason(one), is_fenced=True)
        if one["status"] != 400:
            raise SendError(f"{one['status']} {_reason(one)}")
    if failed:
        raise SendError(_reason(failed[0]), failed[0]["_id"])


class SearchSink(VersionedSink):
    """An index of Elasticsearch or OpenSearch."""

    option_names = ("index", "user", "password", "api_key", "ca_file", "tombstones")

    def __init__(self, spec: SinkSpec) -> None:
        super().__init__(spec)
        self.tombstone_s = number_of(spec, "tombstones", TOMBSTONE_S)
        if not _NAME.fullmatch(self.client.index):
            fact = (
                "letters a to z, digits, _, - and . are possible, up to 200; the first is a letter or a digit"
            )
            raise invalid(spec, f"its index cannot be called '{self.client.index}'", fact, "correct index")
        if not urlsplit(self.client.url).hostname:
            raise invalid(spec, "its url is not an address", None, 'write "url": "https://host:9200"')
        if _DELETED in self.rows.columns:
            raise invalid(spec, f"its rows have a column {_DELETED}", None, "give it another name")

    @cached_property
    def client(self) -> SearchClient:
        names = ("index", "user", "password", "api_key", "ca_file")
        given = {name: self.spec.options[name] for name in names if name in self.spec.options}
        return SearchClient(url=self.spec.options.get("url", "http://localhost:9200"), **given)

    @property
    def location(self) -> str:
        return f"{urlsplit(self.client.url).hostname}, index {self.client.index}"

    @property
    def _key(self) -> str:
        """The key of its state."""
        return self.client.index

    def ask(self, method: str, path: str, body: Any = None, known: Sequence[int] = ()) -> tuple[int, Any]:
        try:
            with self.client.connect() as session:
                return self.client.ask(session, method, path, body, known)
        except SendError as error:
            raise self.unavailable(str(error)) from error

    def check(self) -> None:
        name = self.client.index
        status, found = self.ask("GET", f"{quote(name)}/_settings", known=(404, 400))
        if status == 400:
            raise invalid(
                self.spec, f"its index cannot be called {name}: {_reason(found)}", None, "correct index"
            )
        if status == 200 and name in found:
            what = f"there is an index {name}; readers would need an alias of this name"
            raise invalid(self.spec, what, None, "give the sink another index, or remove that one")
        self.read_document()

    def create(self) -> None:
        kinds = {"sink": "keyword", "version": "long", "timestamp": "long"}
        mapping = {"dynamic": False, "properties": {name: {"type": one} for name, one in kinds.items()}}
        self._create_index(STATE, {"mappings": mapping})
        stored = self.read_document()
        if stored is None:
            self.replace_document(self.new_document(cleared=0), None)
        elif stored.state.table_id.endswith("/lost"):
            number, term, kept = stored.mark
            self.remove_older(stored.cleared)
            renewed = {**kept, "cleared": None, "id": None}
            self.replace_document(replace(stored, mark=(number, term, renewed)), None)
        self.finish_clearing()

    def remove_older(self, epoch: int) -> None:
        """Let readers see the index of an epoch, and remove the older ones."""
        readers = self.client.index
        _, found = self.ask("GET", f"{readers}-headrace-*/_settings")
        pattern = re.compile(rf"{re.escape(readers)}-headrace-(\d+)")
        numbers = {int(one[1]) for one in map(pattern.fullmatch, found) if one is not None}
        if any(one > epoch for one in numbers):
            # Another driver has made a full refresh while this one stalled.
            self.taken()
        name, hidden = self.client.index_of(epoch), {"bool": {"must_not": {"exists": {"field": _DELETED}}}}
        # A text that looks like a date would make its field one, which takes no other texts.
        mappings = {"date_detection": False, "properties": {_DELETED: {"type": "date"}}}
        self._create_index(name, {"aliases": {self.client.writer_of(epoch): {}}, "mappings": mappings})
        older = [self.client.index_of(one) for one in sorted(numbers) if one < epoch]
        actions: list[Any] = [{"add": {"index": name, "alias": readers, "filter": hidden}}]
        actions += [{"remove_index": {"index": one}} for one in older]
        self.ask("POST", "_aliases", {"actions": actions})

    def _create_index(self, name: str, settings: Mapping[str, Any]) -> None:
        status, found = self.ask("PUT", name, settings, known=(400,))
        if status == 400 and "already_exists" not in _reason(found):
            raise invalid(self.spec, f"its index cannot be created: {_reason(found)}", None, "correct index")

    def find_document(self) -> Stored | None:
        status, found = self.ask("GET", f"{STATE}/_doc/{quote(self._key, safe='')}", known=(404,))
        if status == 404 or not found.get("found"):
            return None
        kept = json.loads(found["_source"]["document"])
        # An index that was deleted has lost its rows.
        is_lost = kept["cleared"] and self._uuid(kept["cleared"]) != kept["uuid"]
        state = SinkState.of_json(kept["state"])
        return Stored(
            state=replace(
                state, table_id=f"{state.table_id}/{self.form}/{'lost' if is_lost else kept['id']}"
            ),
            owner=kept["owner"],
            epoch=kept["epoch"],
            kept_from=kept["kept_from"],
            cleared=kept["cleared"],
            mark=(found["_seq_no"], found["_primary_term"], kept),
        )

    def _uuid(self, epoch: int) -> str | None:
        """The id of the index of an epoch; ``None`` if there is none."""
        name = self.client.index_of(epoch)
        _, found = self.ask("GET", f"{name}/_settings/index.uuid", known=(404,))
        return None if name not in found else str(found[name]["settings"]["index"]["uuid"])

    def replace_document(self, stored: Stored, commit: Mapping[str, Any] | None) -> None:
        number, term, before = stored.mark or (None, None, _FIRST)
        if before["last"] is not None and commit is not None:
            # The sink's document has the newest commit: two documents cannot be written in one step.
            self._add(before["last"])
        is_new = before["cleared"] != stored.cleared
        number_of_index = self._uuid(stored.cleared) if is_new else before["uuid"]
        kept = {
            "state": stored.state.kept(),
            "owner": stored.owner,
            "epoch": stored.epoch,
            "kept_from": stored.kept_from,
            "cleared": stored.cleared,
            "uuid": number_of_index,
            # It stays in a full refresh.
            "id": before["id"] or number_of_index,
            "last": commit or before["last"],
        }
        how = "op_type=create" if number is None else f"if_seq_no={number}&if_primary_term={term}"
        body = {"document": json.dumps(kept)}
        status, _ = self.ask("PUT", f"{STATE}/_doc/{quote(self._key, safe='')}?{how}", body, known=(409,))
        if status == 409:
            self.taken()
        if commit is not None and stored.state.version % 1000 == 0:
            self._forget(int(commit["timestamp"]))

    def _add(self, commit: Mapping[str, Any]) -> None:
        ordered = {name: commit[name] for name in ("version", "timestamp")}
        body = {"sink": self._key, **ordered, "document": json.dumps(commit)}
        self.ask("PUT", f"{STATE}/_doc/{quote(self._key + '/' + str(commit['version']), safe='')}", body)

    def _forget(self, now_ms: int) -> None:
        """Remove the metadata of old commits, and the tombstones of documents that were deleted long ago."""
        oldest = now_ms - int(KEPT.total_seconds() * 1000)
        old = [{"term": {"sink": self._key}}, {"range": {"timestamp": {"lt": oldest}}}]
        gone = {"range": {_DELETED: {"lt": now_ms - self.tombstone_s * 1000}}}
        index = self.client.index_of(self.open_document().kept_from)
        for name, query in ((STATE, {"bool": {"filter": old}}), (index, gone)):
            # The index of a full refresh is created after this.
            path = f"{name}/_delete_by_query?conflicts=proceed"
            self.ask("POST", path, {"query": query}, known=(404,))

    @property
    def span(self) -> range:
        query = {
            "size": 0,
            "query": {"term": {"sink": self._key}},
            "aggs": {"first": {"min": {"field": "version"}}},
        }
        stored = self.read_document()
        if stored is None or stored.mark[2]["last"] is None:
            return range(0)
        self.ask("POST", f"{STATE}/_refresh")
        _, found = self.ask("POST", f"{STATE}/_search", query)
        first, last = found["aggregations"]["first"]["value"], int(stored.mark[2]["last"]["version"])
        return range(last if first is None else min(int(first), last), last + 1)

    def documents(self, first: int, last: int) -> Iterator[Mapping[str, Any]]:
        stored = self.read_document()
        newest = None if stored is None else stored.mark[2]["last"]
        if newest is None:
            return
        self.ask("POST", f"{STATE}/_refresh")
        within = {"range": {"version": {"gte": first, "lte": min(last, newest["version"] - 1)}}}
        page: dict[str, Any] = {
            "query": {"bool": {"filter": [{"term": {"sink": self._key}}, within]}},
            "size": _MOST,
            "sort": ["version"],
        }
        hits: list[Any] = [None]
        while hits:
            _, answer = self.ask("POST", f"{STATE}/_search", page)
            hits = answer["hits"]["hits"]
            yield from (json.loads(one["_source"]["document"]) for one in hits)
            page["search_after"] = hits[-1]["sort"] if hits else None
        if first <= newest["version"] <= last:
            yield newest
