"""An object store that fails for a while: the error says so, and nothing counts as damaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from obstore.exceptions import GenericError, PermissionDeniedError
from stores import memory_location

from headrace.errors import CheckpointCorruptError, StorageAccessError, StorageUnreadableError
from headrace.maintain.checkpoints import find_problems, load_checkpoints, load_metadata, offsets_problem
from headrace.maintain.holders import load_maintenance, record_maintenance
from headrace.model.names import TableName
from headrace.sources.files import lists
from headrace.sources.kafka import kind
from headrace.state.checkpoint import (
    CheckpointIdentity,
    SourceIdentity,
    check_readable,
    is_seeded,
    load_offsets,
    load_query,
    write_checkpoint,
)
from headrace.state.kept_schemas import SchemaKey, load_schema
from headrace.state.lease import Heart, Lease, find_driver
from headrace.state.ledger import Ledger
from headrace.storage import objects
from headrace.storage.guarantee import check_guarantee
from headrace.storage.layout import Storage
from headrace.storage.location import Location
from headrace.storage.table_log import last_checkpoint

SLOW_DOWN = GenericError(
    "Server returned error status code: 503: <Code>SlowDown</Code><Message>Less.</Message>"
)
KAFKA = SourceIdentity(index=0, kind="kafka", identity={"topics": {"sales": "id-1"}})


class Failing:
    """The client of a store of which each request of some kinds fails."""

    def __init__(self, client: Any, error: Exception, kinds: tuple[str, ...]) -> None:
        self.client, self.error, self.kinds = client, error, kinds

    def __getattr__(self, name: str) -> Any:
        if name in self.kinds:
            return self.fail
        return getattr(self.client, name)

    def fail(self, *_: Any, **__: Any) -> None:
        raise self.error


@pytest.fixture
def lake() -> Location:
    return memory_location()


def fail(lake: Location, monkeypatch: pytest.MonkeyPatch, error: Exception = SLOW_DOWN, *kinds: str) -> None:
    client = lake.files._client  # type: ignore[attr-defined]
    monkeypatch.setattr(lake.files, "_client", Failing(client, error, kinds or ("get",)))


@pytest.mark.parametrize(
    ("answer", "summary", "remedy"),
    [
        (str(SLOW_DOWN), "too many requests", "in a minute"),
        ("Server returned non-2xx status code: 503 Service Unavailable", "has failed", "in a minute"),
        ("<Code>InternalError</Code>", "has failed", "in a minute"),
        ("HTTP error: error sending request\n\nHttpError { kind: Timeout }", "in time", "`endpoint`"),
        ("HTTP error: error sending request\n\nHttpError { kind: Connect }", "be reached", "`endpoint`"),
        ("something new", "the request failed", "headrace doctor"),
    ],
)
def test_a_failure_that_can_pass_says_why_and_what_to_do(
    lake: Location, monkeypatch: pytest.MonkeyPatch, answer: str, summary: str, remedy: str
) -> None:
    fail(
        lake, monkeypatch, GenericError(answer), "get", "put", "list", "list_with_delimiter", "head", "delete"
    )
    file = lake / "f"
    uses: list[Callable[[], Any]] = [
        *(file.read_bytes, file.look, lake.entries, lambda: list(lake.walk())),
        *(lambda: file.replace("x"), lambda: file.create("x"), lambda: file.swap(b"", "x"), file.delete),
    ]
    for use in uses:
        with pytest.raises(StorageUnreadableError) as caught:
            use()
        error = caught.value
        assert (error.code, error.transient) == ("STORAGE_UNREADABLE", True)
        assert summary in error.summary
        assert remedy in error.remedies[0]
        assert isinstance(error, OSError), "what is skipped where a file cannot be read stays skipped"


@pytest.mark.parametrize(
    ("error", "summary", "remedy"),
    [
        (GenericError("400: <Code>ExpiredToken</Code>"), "credentials have expired", "get new credentials"),
        (PermissionDeniedError("<Code>ExpiredToken</Code>"), "have expired", "get new credentials"),
        (PermissionDeniedError("<Code>RequestTimeTooSkewed</Code>"), "refuses the access", "set the clock"),
        (
            PermissionDeniedError("<Code>AccessDenied</Code>"),
            "refuses the access",
            "permissions for the bucket",
        ),
        (GenericError("<Code>NoSuchBucket</Code>"), "bucket does not exist", "aws s3 mb"),
        (GenericError("<Code>InvalidBucketName</Code>"), "the name of the bucket", "correct the bucket"),
        (GenericError("400: <Code>AuthorizationHeaderMalformed</Code>"), "another region", "`region`"),
        (PermissionDeniedError("<Code>InvalidAccessKeyId</Code>"), "the access key", "correct the key"),
        # Not an object that is missing.
        (FileNotFoundError("404: <Code>XAdminUserNotFound</Code>"), "the access key", "correct the key"),
    ],
)
def test_a_refusal_says_what_to_correct(
    lake: Location, monkeypatch: pytest.MonkeyPatch, error: Exception, summary: str, remedy: str
) -> None:
    fail(lake, monkeypatch, error)
    with pytest.raises(StorageAccessError) as caught:
        (lake / "f").read_bytes()
    assert summary in caught.value.summary
    assert remedy in caught.value.remedies[0]
    assert not caught.value.transient


def test_a_failure_in_the_middle_of_a_large_object_is_the_same_error(
    lake: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "_WHOLE_BYTES", 4)
    monkeypatch.setattr(objects, "PART_BYTES", 4)
    (lake / "f").replace("0123456789")
    with (lake / "f").open() as file:
        assert file.read(2) == b"01"
        file.raw._client = Failing(None, SLOW_DOWN, ("get",))  # type: ignore[attr-defined]
        with pytest.raises(StorageUnreadableError, match="too many requests"):
            file.read()


def test_a_healthy_file_is_not_taken_for_a_damaged_one(
    lake: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, name = Storage(lake), TableName("default", "sales")
    checkpoint = storage.checkpoint(name, "sales", 1)
    identity = CheckpointIdentity(
        pipeline="shop", flow="sales", dataset=str(name), generation=1, table_id="t1", sources=()
    )
    write_checkpoint(checkpoint, identity, {})
    (checkpoint / "offsets" / "0").replace('v1\n{"batchTimestampMs": 1}\n{}')
    (checkpoint / "commits" / "0").replace("v1\n{}")
    (checkpoint / "metadata").replace('{"id": "1"}')
    key = SchemaKey(format="csv", path="/in", options={})
    reads: list[Callable[[], Any]] = [
        lambda: load_offsets(checkpoint, 0),
        lambda: offsets_problem(checkpoint, 0, 1),
        lambda: check_readable(checkpoint),
        lambda: is_seeded(checkpoint),
        lambda: load_metadata(checkpoint / "commits" / "0"),
        lambda: load_query(checkpoint),
        lambda: list(load_checkpoints(storage, lambda _: True)),
        lambda: list(find_problems(flow)),
        lambda: load_schema(lake, key),
        lambda: lists._read(checkpoint / "f"),
        lambda: list(lists._lines(checkpoint / "f")),
        lambda: kind._initial_offsets(checkpoint, KAFKA),
    ]
    (flow,) = load_checkpoints(storage, lambda _: True)
    client = lake.files._client  # type: ignore[attr-defined]
    key.file(lake).replace("{}")
    for error, expected in (
        (SLOW_DOWN, StorageUnreadableError),
        (PermissionDeniedError("<Code>AccessDenied</Code>"), StorageAccessError),
    ):
        monkeypatch.setattr(lake.files, "_client", Failing(client, error, ("get",)))
        for read in reads:
            with pytest.raises(expected):
                read()
    monkeypatch.setattr(lake.files, "_client", client)
    with pytest.raises(CheckpointCorruptError):
        load_offsets(checkpoint, 1)


def test_a_lease_that_cannot_be_read_at_the_moment_is_not_damaged(
    lake: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Heart() as heart:
        fail(lake, monkeypatch)
        with pytest.raises(StorageUnreadableError, match="too many requests"):
            heart.acquire(lake / "leases" / "a.json", "a")


def test_a_small_file_that_cannot_be_read_at_the_moment_is_not_missing(
    lake: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, name = Storage(lake), TableName("default", "sales")
    record_maintenance(storage, name, "vacuumed", {"readable_from": 7})
    held = Lease(storage.lease(name, "sales"), "o")
    held.location.replace("{}")
    reads: list[Callable[[], Any]] = [
        lambda: load_maintenance(storage, name),
        lambda: last_checkpoint(storage.table(name)),
        lambda: find_driver(held.location),
        lambda: check_guarantee(lake),
    ]
    with monkeypatch.context() as patch:
        fail(lake, patch)
        for read in reads:
            with pytest.raises(StorageUnreadableError):
                read()
    assert load_maintenance(storage, name)["vacuumed"]["readable_from"] == 7


def test_late_rows_are_kept_where_they_cannot_be_read_at_the_moment(
    lake: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(lake / "ledger", TableName("default", "sales"), "sales")
    assert ledger.record_late("c", 1, 500)
    with monkeypatch.context() as patch:
        fail(lake, patch)
        with pytest.raises(StorageUnreadableError):
            ledger.record_late("c", 2, 1)
    assert ledger.record_late("c", 2, 1)
    with monkeypatch.context() as patch:
        patch.setattr(Location, "swap", lambda *_: pytest.fail("a count that stays is not written"))
        assert not ledger.record_late("c", 2, 1)
    assert ledger.late_rows("c") == 501
    (lake / "ledger" / "late.json").replace("{")
    assert ledger.record_late("c", 3, 1)
    assert ledger.late_rows("c") == 1
