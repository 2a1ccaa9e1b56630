"""Rows as requests to a web hook: at least once, with a key by which the receiver finds repeated ones."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from headrace import errors
from headrace.model.names import quoted_column
from headrace.model.network import signature
from headrace.runtime.lazy_pyspark import DataFrame, F
from headrace.sinks.outside.by_key import (
    JSON_OPTIONS,
    KEEP_OUT,
    OWN_COLUMNS,
    invalid,
    number_of,
    refused,
    unavailable,
    unknown_option,
)
from headrace.sinks.target import BatchStamp, SinkSender, SinkSpec

OPTIONS = ("url", "method", "sign_with", "rows", "parallel", "timeout", "retries")
_HEADER = "header."
_AGAIN = (408, 425, 429, *range(500, 600))
_ABOUT_ALL = (401, 403, 404, 405, 410)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""What the name of a method or of a header can be."""
_BODY, _COUNT = "__headrace_body", "__headrace_count"
_DONE = pa.schema({"status": pa.int64(), "message": pa.string(), "body": pa.string()})


@dataclass(frozen=True, kw_only=True)
class HttpSender:
    """The function of a task: sends its rows.

    Args:
        batch: Tells the batch from others.
        sign_with: The secret of an HMAC; ``None`` signs nothing.
        rows: Rows of a request.
        parallel: Requests at the same time.
        timeout: Seconds.
        retries: Repetitions of a request.
    """

    url: str
    method: str
    sign_with: str | None = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    rows: int
    parallel: int
    timeout: int
    retries: int
    batch: str = ""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        retry = Retry(
            total=self.retries,
            status_forcelist=_AGAIN,
            allowed_methods=None,
            backoff_factor=0.5,
            raise_on_status=False,
            respect_retry_after_header=False,  # it can be a day
        )
        failed: list[dict[str, Any]] = []
        with requests.Session() as session, ThreadPoolExecutor(self.parallel) as pool:
            for scheme in ("http://", "https://"):
                session.mount(scheme, HTTPAdapter(pool_maxsize=self.parallel, max_retries=retry))
            for batch in batches:
                sent = pool.map(lambda request: self._send(session, *request), self._requests(batch))
                failed += [one for one in sent if one is not None]
                if failed:
                    break
        yield pa.RecordBatch.from_pylist(failed[:1], _DONE)

    def _requests(self, batch: pa.RecordBatch) -> Iterator[tuple[str, str]]:
        """The key and the body of each request."""
        texts, counts = batch[_BODY].to_pylist(), batch[_COUNT].to_pylist()
        # Equal rows are told apart by a number.
        rows = [(text, number) for text, count in zip(texts, counts, strict=True) for number in range(count)]
        for start in range(0, len(rows), self.rows):
            some = rows[start : start + self.rows]
            key = hashlib.sha256(json.dumps([self.batch, some]).encode()).hexdigest()
            yield key, some[0][0] if self.rows == 1 else f"[{','.join(text for text, _ in some)}]"

    def _send(self, session: requests.Session, key: str, body: str) -> dict[str, Any] | None:
        """Send a request. Returns why it failed; ``None`` if the receiver has taken it."""
        data = body.encode()
        headers = {"Content-Type": "application/json", **self.headers, "Idempotency-Key": key}
        if self.sign_with is not None:
            headers |= signature(self.sign_with, data)
        try:
            # After a redirect, the request could have lost its body, or go to another host with its secrets.
            answer = session.request(
                self.method, self.url, data=data, headers=headers, timeout=self.timeout, allow_redirects=False
            )
        except requests.RequestException as error:
            return {"status": 0, "message": type(error).__name__, "body": None}
        if 200 <= answer.status_code < 300:
            return None
        return {"status": answer.status_code, "message": answer.text[:200], "body": body[:500]}


class HttpSink(SinkSender):
    """A web hook."""

    def __init__(self, spec: SinkSpec) -> None:
        options = spec.options
        headers = {name: one for name, one in options.items() if name.startswith(_HEADER)}
        unknown_option(spec, {*OPTIONS, *headers, f"{_HEADER}<name>"})
        self.spec = spec
        self.sender = HttpSender(
            url=options["url"],
            method=options.get("method", "POST"),
            sign_with=options.get("sign_with"),
            headers={name.removeprefix(_HEADER): one for name, one in headers.items()},
            rows=number_of(spec, "rows", 1),
            parallel=number_of(spec, "parallel", 8),
            timeout=number_of(spec, "timeout", 30),
            retries=number_of(spec, "retries", 5),
        )
        self._check()

    def _check(self) -> None:
        spec, sender = self.spec, self.sender
        if sender.sign_with == "":
            raise invalid(spec, "its secret sign_with is empty", None, "set it, or leave it out")
        for name in (sender.method, *sender.headers):
            if not _TOKEN.fullmatch(name):
                raise invalid(spec, f"it cannot have the method or header '{name}'", None, "correct it")
        if not all(one.isascii() and one.isprintable() for one in sender.headers.values()):
            raise invalid(spec, "a header has characters that are not ASCII", None, "remove them")
        try:
            address = urlsplit(sender.url)
            is_address = address.scheme in ("http", "https") and address.hostname and address.port != 0
        except ValueError:
            is_address = False
        if not is_address:
            raise invalid(spec, "its url is not an address", None, 'write "url": "https://host/path"')

    def send(self, rows: DataFrame, stamp: BatchStamp) -> None:
        columns = [quoted_column(name) for name in rows.columns if name not in OWN_COLUMNS]
        body = F.to_json(F.struct(*columns), JSON_OPTIONS).alias(_BODY)
        bodies = rows.select(body).groupBy(_BODY).agg(F.count("*").alias(_COUNT))
        sender = replace(self.sender, batch=f"{stamp.checkpoint}/{stamp.batch}")
        done = bodies.sortWithinPartitions(_BODY).mapInArrow(
            sender, "status long, message string, body string"
        )
        for one in done.collect():
            raise self._error(one["status"], one["message"], one["body"])

    def _error(self, status: int, message: str, body: str | None) -> errors.HeadraceError:
        spec, host = self.spec, urlsplit(self.sender.url).hostname
        if status == 0 or status in _AGAIN:
            text = f"{host} does not answer: {status or message}"
            return unavailable(spec, text, "requests that were taken are sent again")
        if status < 400 or status in _ABOUT_ALL:
            return invalid(spec, f"{host} refuses all requests: {status}", message, "correct url or headers")
        return refused(spec, f"{host} refuses a row: {status} {message}", {"row": body}, [KEEP_OUT])
