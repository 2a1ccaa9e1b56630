"""Rows as requests to a web hook: at least once, with a key by which the receiver finds repeated ones."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from headrace import errors
from headrace.model.declarations import Sink
from headrace.model.names import quoted_column
from headrace.runtime.lazy_pyspark import DataFrame, F
from headrace.sinks.outside.by_key import JSON_OPTIONS, KEEP_OUT, OWN_COLUMNS
from headrace.sinks.target import BatchStamp

_OPTIONS = {"rows": 1, "parallel": 8, "timeout": 30, "retries": 5}
"""Options with a number: rows of a request, requests at the same time in a task, seconds, and repetitions."""
_TEXTS = ("url", "method", "sign_with")
_HEADER = "header."
_AGAIN = (408, 425, 429, *range(500, 600))
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""What the name of a method or of a header can be."""
_BODY, _COUNT = "__headrace_body", "__headrace_count"
_DONE = pa.schema({"status": pa.int64(), "message": pa.string(), "body": pa.string()})


@dataclass(frozen=True, kw_only=True)
class HttpSender:
    """Sends the rows of a partition. `sign_with`: the secret of an HMAC; ``None`` signs nothing."""

    url: str
    batch: str
    method: str = "POST"
    sign_with: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    rows: int = 1
    parallel: int = 8
    timeout: int = 30
    retries: int = 5

    @classmethod
    def of(cls, sink: Sink, batch: str = "") -> HttpSender:
        """The sender of a sink; raises `SinkInvalidError`. `batch`: what tells the batch from others."""
        headers = {
            name.removeprefix(_HEADER): one for name, one in sink.options.items() if name.startswith(_HEADER)
        }
        given: dict[str, Any] = {
            name: one for name, one in sink.options.items() if not name.startswith(_HEADER)
        }
        for name, text in given.items():
            if name not in (*_OPTIONS, *_TEXTS):
                known = [*_TEXTS, *_OPTIONS]
                fact = f"its options: {', '.join(known)}, {_HEADER}<name of a header>"
                raise _invalid(
                    f"an http sink has no option {name}", fact, *errors.did_you_mean(name, known, "use one")
                )
            if name in _OPTIONS:
                if not text.isdecimal() or not int(text):
                    raise _invalid(
                        f"the option {name} of an http sink must be a number", None, f"correct {name}"
                    )
                given[name] = int(text)
        if given.get("sign_with") == "":
            raise _invalid("the secret sign_with of an http sink is empty", None, "set it, or leave it out")
        for name in (given.get("method", "POST"), *headers):
            if not _TOKEN.fullmatch(name):
                raise _invalid(f"an http sink cannot have the method or header '{name}'", None, "correct it")
        if not all(one.isascii() and one.isprintable() for one in headers.values()):
            raise _invalid("a header of an http sink has characters that are not ASCII", None, "remove them")
        try:
            address = urlsplit(given["url"])
            is_address = address.scheme in ("http", "https") and address.hostname and address.port != 0
        except ValueError:
            is_address = False
        if not is_address:
            remedy = 'write "url": "https://host/path"'
            raise _invalid("the url of an http sink is not an address", None, remedy)
        return cls(**given, headers=headers, batch=batch)

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
            digest = hmac.new(self.sign_with.encode(), data, hashlib.sha256).hexdigest()
            headers["X-Headrace-Signature"] = f"sha256={digest}"
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


def send_to_http(rows: DataFrame, stamp: BatchStamp, sink: Sink, connection: Mapping[str, str]) -> None:
    sender = HttpSender.of(sink, f"{stamp.checkpoint}/{stamp.batch}")
    columns = [quoted_column(name) for name in rows.columns if name not in OWN_COLUMNS]
    bodies = (
        rows.select(F.to_json(F.struct(*columns), JSON_OPTIONS).alias(_BODY))
        .groupBy(_BODY)
        .agg(F.count("*").alias(_COUNT))
    )
    failed = (
        bodies.sortWithinPartitions(_BODY)
        .mapInArrow(sender, "status long, message string, body string")
        .collect()
    )
    for one in failed:
        raise _error(sender, one["status"], one["message"], one["body"])


def _error(sender: HttpSender, status: int, message: str, body: str | None) -> errors.HeadraceError:
    host = urlsplit(sender.url).hostname
    if status == 0 or status in _AGAIN:
        return errors.SinkUnavailableError(
            f"{host} does not answer: {message if status == 0 else status}",
            facts=("nothing is lost: the batch is repeated; requests that were taken are sent again",),
            remedies=("start the receiver, or correct url in the options of hr.create_sink",),
            params={"status": status},
        )
    if status < 400 or status in (401, 403, 404, 405, 410):
        return _invalid(
            f"{host} refuses all requests: {status}", message, "correct url, method, or the headers"
        )
    return errors.SinkRowRefusedError(
        f"{host} refuses a row: {status} {message}",
        facts=(str(body), "the batch was not recorded"),
        remedies=(KEEP_OUT,),
        params={"status": status},
    )


def _invalid(what: str, fact: str | None, *remedies: str) -> errors.SinkInvalidError:
    return errors.SinkInvalidError(what, facts=(fact,) if fact else (), remedies=remedies, params={})
