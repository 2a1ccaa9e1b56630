"""A storage on S3: its settings, its credentials, and what keeps two writers apart."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from obstore.exceptions import GenericError
from obstore.store import MemoryStore

from headrace.declare.spec import load_project
from headrace.errors import (
    PackageMissingError,
    SpecInvalidError,
    SpecUnknownKeyError,
    StorageAccessError,
    StorageUnsafeError,
    StorageUnsupportedError,
)
from headrace.model.names import TableName
from headrace.model.project import S3Settings
from headrace.model.secrets import Redactor
from headrace.observe.event_table import EventTable
from headrace.project.copying import copy_storage
from headrace.state.lease import held_leases
from headrace.storage.arrow_rows import select
from headrace.storage.guarantee import check_guarantee
from headrace.storage.layout import Storage, locate, reach_s3
from headrace.storage.location import Location, open_delta
from headrace.storage.objects import ObjectFiles
from headrace.storage.s3.access import S3Access
from headrace.verify.stored import LOCAL, S3Buckets, StoredPath
from object_server import KEY, SECRET, ObjectServer, open_buckets
from s3_proxy import S3Proxy

FIXED = S3Settings(
    endpoint="http://minio.test:9000", access_key_id="spec-key", secret_access_key="spec/secret"
)


@pytest.fixture
def lake(object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Location:
    """A folder of a bucket."""
    object_server.reach(monkeypatch)
    return locate(f"s3://{object_server.make_bucket()}/v1")


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has used no bucket yet, on a machine without credentials."""
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    open_buckets(monkeypatch)
    yield


def test_other_threads_go_on_while_a_query_waits_for_the_store(
    object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with S3Proxy(object_server.url) as proxy:
        object_server.reach(monkeypatch, proxy.url)
        table = locate(f"s3://{object_server.make_bucket()}/events")
        options = {**table.files.table_options, "timeout": "5s", "max_retries": "0"}
        deltalake.write_deltalake(table.path, pa.table({"n": [1, 2]}), storage_options=options)
        proxy.clear()
        # The proxy is threads of this process: if the query held the lock of the interpreter, no request
        # would be answered.
        rows = select(
            DeltaTable(table.path, storage_options=options), "SELECT sum(n) AS n FROM t WHERE n > 1"
        )
        assert rows.column("n").to_pylist() == [2]
        assert any(one.path.endswith(".parquet") for one in proxy.requests)


def spec(folder: Path, *lines: str) -> Path:
    file = folder / "headrace.yml"
    file.write_text("\n".join(("name: shop", *lines)) + "\n")
    return file


# The settings of the spec.


@pytest.mark.usefixtures("settings")
def test_the_settings_of_the_spec_reach_each_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_SECRET", "from/the+environment")
    redactor = Redactor()
    file = spec(
        tmp_path,
        "storage: s3a://lake/v1/",
        "object_storage:",
        "  s3: {endpoint: 'https://minio.test', region: eu-north-1, path_style: false,",
        "       access_key_id: spec-key, secret_access_key: '${LAKE_SECRET}'}",
    )
    found = load_project(file, redactor=redactor)
    assert found.storage.root.path == "s3://lake/v1"
    options = found.storage.root.files.table_options
    assert options["aws_endpoint_url_s3"] == "https://lake.minio.test"
    assert options["aws_virtual_hosted_style_request"] == "true"
    assert (options["aws_region"], options["aws_allow_http"]) == ("eu-north-1", "false")
    assert (options["aws_access_key_id"], options["aws_secret_access_key"]) == (
        "spec-key",
        "from/the+environment",
    )
    assert options["aws_conditional_put"] == "etag"
    shown = f"{found!r} {found.s3!r} {reach_s3('lake')!r} {redactor('from/the+environment')}"
    assert "the+environment" not in shown


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize(
    ("key", "suggestion"),
    [("object_storge: {s3: {}}", "object_storage"), ("object_storage: {s3: {end_point: x}}", "endpoint")],
)
def test_an_unknown_key_is_refused_with_a_suggestion(tmp_path: Path, key: str, suggestion: str) -> None:
    with pytest.raises(SpecUnknownKeyError) as caught:
        load_project(spec(tmp_path, key))
    assert caught.value.params["suggestion"] == suggestion


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("{access_key_id: abcd}", "secret_access_key"),
        ("{endpoint: 'minio:9000'}", "must be a URL"),
        ("{endpoint: 'http://key:secret@minio:9000'}", "must be a URL"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path: Path, value: str, part: str) -> None:
    with pytest.raises(SpecInvalidError) as caught:
        load_project(spec(tmp_path, f"object_storage: {{s3: {value}}}"))
    assert part in caught.value.summary
    assert caught.value.location is not None


@pytest.mark.usefixtures("settings")
def test_a_setting_of_s3_is_overridden_for_one_command(tmp_path: Path) -> None:
    file = spec(tmp_path, "object_storage: {s3: {endpoint: 'http://minio.test', region: eu-north-1}}")
    found = load_project(file, overrides={"object_storage.s3.region": "eu-west-1"})
    assert (found.s3.endpoint, found.s3.region) == ("http://minio.test", "eu-west-1")
    with pytest.raises(SpecUnknownKeyError) as caught:
        load_project(file, overrides={"object_storage.s3.regin": "eu-west-1"})
    assert caught.value.params["suggestion"] == "region"


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize(
    ("endpoint", "part"),
    [
        ("minio.test:9000", "`minio.test:9000` is not a URL"),
        ("http://key:pl4nted@minio.test", "`minio.test` is not a URL"),
        ("http://127.0.0.1:9000", "is an address"),
    ],
)
def test_an_endpoint_of_the_environment_that_cannot_work_is_refused(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, part: str
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    with pytest.raises(SpecInvalidError) as caught:
        _ = S3Access(S3Settings(path_style=False)).endpoint
    assert part in caught.value.summary
    assert "pl4nted" not in str(caught.value)
    assert "AWS_ENDPOINT_URL_S3" in caught.value.facts[0]


@pytest.mark.usefixtures("settings")
def test_a_role_that_cannot_be_assumed_is_one_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with pytest.raises(StorageAccessError, match="cannot be read") as caught:
        S3Access(S3Settings(role_arn="lake-writer")).credentials()
    assert "assume lake-writer" in caught.value.remedies[0]
    assert not caplog.records, "no stack trace"


@pytest.mark.usefixtures("settings")
def test_an_underscore_in_the_name_of_a_bucket_is_named() -> None:
    with pytest.raises(StorageUnsupportedError) as caught:
        locate("s3://shop_lake/v1")
    assert "underscore" in caught.value.facts[0]


@pytest.mark.usefixtures("settings")
def test_a_bucket_has_the_same_settings_in_the_whole_process(tmp_path: Path) -> None:
    lines = ("storage: s3://lake/v1", "object_storage: {s3: {endpoint: 'http://one.test'}}")
    assert load_project(spec(tmp_path, *lines)).storage == load_project(spec(tmp_path, *lines)).storage
    with pytest.raises(SpecInvalidError) as caught:
        load_project(spec(tmp_path, lines[0], "object_storage: {s3: {endpoint: 'http://two.test'}}"))
    assert caught.value.params["bucket"] == "lake"
    with pytest.raises(SpecInvalidError):
        locate("s3://another/x")


@pytest.mark.usefixtures("settings")
def test_variables_of_the_environment_lead_no_client_to_another_store(
    object_server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    bucket = object_server.make_bucket()
    keys = f"access_key_id: {KEY}, secret_access_key: {SECRET}"
    file = spec(
        tmp_path,
        f"storage: s3://{bucket}/v1",
        f"object_storage: {{s3: {{endpoint: '{object_server.url}', region: us-east-1, {keys}}}}}",
    )
    root = load_project(file).storage.root
    (root / "file").create("text")
    options = dict(root.files.table_options)
    deltalake.write_deltalake((root / "table").path, pa.table({"n": [1]}), storage_options=options)
    listed = object_server.client.list_objects_v2(Bucket=bucket)["Contents"]
    assert {one["Key"].split("/")[1] for one in listed} == {"file", "table"}

    monkeypatch.setenv("AWS_SESSION_TOKEN", "of other keys")
    assert (root / "file").read_text() == "text"
    with pytest.raises(StorageAccessError, match="AWS_SESSION_TOKEN"):
        _ = root.files.table_options


# Credentials.


@pytest.mark.usefixtures("settings")
def test_credentials_of_a_profile_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "credentials"
    file.write_text("[lake]\naws_access_key_id = of-profile\naws_secret_access_key = s3cret/of-profile\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    access, told = S3Access(S3Settings(profile="lake")), list[str]()
    access.tell(told.append)
    found = access.credentials()
    assert (found.access_key_id, found.expires) == ("of-profile", None)
    assert told == ["s3cret/of-profile"]
    assert "s3cret" not in repr(found)
    with pytest.raises(StorageAccessError, match="no profile `lak`"):
        S3Access(S3Settings(profile="lak")).credentials()
    file.write_text("[lake\n")
    with pytest.raises(StorageAccessError, match="AWS's files cannot be read"):
        S3Access(S3Settings(profile="lake")).credentials()


@pytest.mark.usefixtures("settings")
def test_missing_credentials_are_named_with_where_they_were_looked_for() -> None:
    with pytest.raises(StorageAccessError) as caught:
        S3Access(S3Settings()).credentials()
    assert "AWS_PROFILE" in caught.value.remedies[0]
    assert "web identity" in caught.value.facts[0]


def test_a_role_is_assumed_and_renewed_before_its_credentials_expire(
    lake: Location, object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", object_server.url)
    access = S3Access(S3Settings(role_arn="arn:aws:iam::123456789012:role/lake"))
    first = access.credentials()
    assert first.session_token
    assert first.expires is not None
    assert timedelta(minutes=30) < first.expires - datetime.now(UTC) < timedelta(hours=2)
    assert access.credentials() == first, "they are found once"
    monkeypatch.setattr(access._source, "_expiry_time", datetime.now(UTC) + timedelta(minutes=5))
    second = access.credentials()
    assert second.expires is not None
    assert second.expires - datetime.now(UTC) > timedelta(minutes=30)


@pytest.mark.usefixtures("settings")
def test_the_extra_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(PackageMissingError) as caught:
        S3Access(S3Settings()).credentials()
    assert caught.value.remedies == ("pip install 'headrace[s3]'",)


# Two writers.


def test_a_safe_store_is_tried_once(lake: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lake.files.find_unsafe(lake.path) is None
    assert lake.entries() == []
    check_guarantee(lake)
    assert lake.list_files() == ["guarantee.json"]
    monkeypatch.setattr(type(lake.files), "find_unsafe", lambda *_: "it was tried again")
    check_guarantee(lake)
    # A copy of the data in another store, or another store at the same address.
    (lake / "guarantee.json").copy(lake.parent / "copy" / "guarantee.json")
    record = (lake / "guarantee.json").read_json()
    (lake / "guarantee.json").replace_json({**record, "endpoint": "https://elsewhere"})
    orders = TableName("default", "orders")
    for root in (lake.parent / "copy", lake):
        with pytest.raises(StorageUnsafeError, match="it was tried again"):
            check_guarantee(root)
        with pytest.raises(StorageUnsafeError), held_leases(Storage(root), [orders]):
            pytest.fail("a command that writes tables begins")


@pytest.mark.parametrize(
    ("mode", "text"), [("create", "creates an object that exists"), ("swap", "was changed meanwhile")]
)
def test_a_store_that_ignores_conditions_is_refused_before_anything_is_written(
    mode: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ObjectFiles("memory", lambda _: MemoryStore())
    root, honest = Location("memory://lake/v1", files), files._put

    def put(path: str, data: bytes, condition: Any) -> bool:
        if (condition == "create") != (mode == "create"):
            return honest(path, data, condition)
        files.replace(path, data)
        return True

    monkeypatch.setattr(files, "_put", put)
    with pytest.raises(StorageUnsafeError) as caught:
        check_guarantee(root)
    assert text in caught.value.params["broken"]
    assert root.entries() == []


def test_a_write_whose_answer_is_lost_knows_its_own_object(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    if location.is_local:
        return
    client = location.files._client  # type: ignore[attr-defined]

    class Lossy:
        def put(self, *arguments: Any, **settings: Any) -> None:
            client.put(*arguments, **settings)
            raise GenericError("the answer was lost")

        def __getattr__(self, name: str) -> Any:
            return getattr(client, name)

    file = location / "lease"
    monkeypatch.setattr(location.files, "_client", Lossy())
    assert file.create("first")
    assert not file.create("second")
    assert file.swap(b"first", "third")
    assert not file.swap(b"first", "fourth")
    assert file.read_text() == "third"


def test_two_commits_of_one_version_are_two_versions(lake: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    table = lake / "t"
    rows = pa.table({"a": [1]})
    options = dict(table.files.table_options)
    deltalake.write_deltalake(table.path, rows, storage_options=options)
    one, two = open_delta(table), open_delta(table)
    deltalake.write_deltalake(one, rows, mode="append")
    deltalake.write_deltalake(two, rows, mode="append")
    assert open_delta(table).version() == 2
    assert open_delta(table).to_pyarrow_table().num_rows == 3


def test_the_event_table_is_opened_again_with_new_credentials(
    lake: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = EventTable(lake / "events")
    assert table._open is not None
    rows: list[Any] = []
    table.append(rows)
    first = table._open()
    assert table._open() is first
    monkeypatch.setattr(
        type(lake.files), "table_options", {**lake.files.table_options, "aws_session_token": "t"}
    )
    assert table._open() is not first


# The proof's own client, and errors.


def test_the_proof_reads_a_bucket_with_a_client_of_its_own(lake: Location) -> None:
    (lake / "ledger" / "a b" / "1.json").replace("text")
    deltalake.write_deltalake(
        f"{lake}/t", pa.table({"a": [1, 2]}), storage_options=dict(lake.files.table_options)
    )
    root = StoredPath.at(lake.path, {**LOCAL, "s3": S3Buckets(reach_s3)})
    assert [entry.name for entry in root.entries()] == ["ledger", "t"]
    assert (root / "ledger" / "a b" / "1.json").read_text() == "text"
    assert (root / "ledger").exists()
    assert not (root / "nothing").exists()
    assert (root / "nothing").entries() == []
    assert (root / "t").open_table().to_pyarrow_table().num_rows == 2
    assert root.find(f"{lake}/t") == root / "t"


def test_the_proof_reads_a_storage_that_is_a_whole_bucket(lake: Location) -> None:
    bucket = lake.path.removesuffix("/v1")
    root = StoredPath.at(bucket, {**LOCAL, "s3": S3Buckets(reach_s3)})
    assert root.entries() == []
    (lake / "f").replace("text")
    assert str(root) == bucket
    assert [entry.name for entry in root.entries()] == ["v1"]
    assert (root / "v1" / "f").read_text() == "text"


def test_a_bucket_that_does_not_exist_is_not_an_empty_storage(lake: Location) -> None:
    nowhere = locate("s3://no-such-bucket/v1")
    for use in (nowhere.entries, (nowhere / "f").read_bytes, lambda: (nowhere / "f").replace("x")):
        with pytest.raises(StorageAccessError, match="the bucket does not exist") as caught:
            use()
        assert SECRET not in str(caught.value)
        assert KEY not in str(caught.value)


def test_the_marks_of_folders_that_hadoop_makes_are_no_files(
    lake: Location, object_server: ObjectServer, tmp_path: Path
) -> None:
    bucket, _, key = lake.path.removeprefix("s3://").partition("/")
    for name in ("tables/default/sales/_delta_log/_staged_commits/", "checkpoints/"):
        object_server.client.put_object(Bucket=bucket, Key=f"{key}/{name}", Body=b"")
    (lake / "tables" / "empty").replace("")
    assert {file.name for file in lake.walk()} == {"empty"}
    assert copy_storage(Storage(lake), Storage.at(tmp_path / "copy"))["files"] == 1


def test_many_small_files_are_read_in_one_call(location: Location) -> None:
    for number in range(20):
        (location / f"{number}.json").replace(str(number))
    names = [f"{number}.json" for number in range(21)]
    assert location.read_files(names) == {f"{number}.json": str(number).encode() for number in range(20)}
    assert sorted(state.size for _, state in location.walk_states()) == [1] * 10 + [2] * 10
    location.delete_files(["missing/deep.json", *reversed(names)])
    assert location.list_files() == []
