"""What a Spark session is given for S3."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from headrace.errors import SpecInvalidError
from headrace.model.project import S3Settings
from headrace.model.secrets import Redactor
from headrace.runtime.engine.record import choose_engine
from headrace.runtime.storage_support import NO_STORAGE
from headrace.storage.layout import locate
from headrace.storage.location import Location
from headrace.storage.s3 import spark
from headrace.storage.s3.access import Credentials, S3Access, S3Files
from headrace.storage.s3.spark import (
    ANY_BUCKET,
    build_support,
    check_session,
    check_settings,
    share_credentials,
)
from waiting import until

SECRET = "pl4nted/s3+secret"
MINIO = S3Settings(
    endpoint="http://minio.test:9000", region="eu-1", access_key_id="planted-key", secret_access_key=SECRET
)


def test_the_settings_reach_each_bucket_and_hold_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    aws = S3Access(S3Settings(region="eu-central-1"))
    monkeypatch.setattr(S3Access, "endpoint", None)
    support = build_support({ANY_BUCKET: aws}, {})
    assert support.settings["spark.hadoop.fs.s3a.endpoint.region"] == "eu-central-1"
    assert "spark.hadoop.fs.s3a.endpoint" not in support.settings
    monkeypatch.undo()

    support = build_support({"lake": S3Access(MINIO)}, {"spark.plugins": "com.example.Mine"})
    prefix = "spark.hadoop.fs.s3a.bucket.lake."
    assert {key: value for key, value in support.settings.items() if key.startswith(prefix)} == {
        f"{prefix}aws.credentials.provider": "io.headrace.s3.SharedCredentials",
        f"{prefix}endpoint": "http://minio.test:9000",
        f"{prefix}endpoint.region": "eu-1",
        f"{prefix}path.style.access": "true",
        f"{prefix}connection.ssl.enabled": "false",
    }
    assert support.settings["spark.plugins"] == "com.example.Mine,io.headrace.s3.CredentialsPlugin"
    assert not any(secret in str(support.settings) for secret in (SECRET, "planted-key"))


def test_a_user_can_change_what_is_safe_to_change() -> None:
    key = "spark.hadoop.fs.s3a.endpoint"
    assert key not in build_support({ANY_BUCKET: S3Access(MINIO)}, {key: "http://other.test"}).settings


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.hadoop.fs.s3a.performance.flags", "delete,create"),
        ("spark.hadoop.fs.s3a.performance.flags", "*"),
        ("spark.hadoop.fs.s3a.bucket.lake.performance.flags", "Create"),
        ("spark.hadoop.fs.s3a.create.performance", "true"),
        ("spark.hadoop.fs.s3a.create.conditional.enabled", "false"),
        ("spark.hadoop.fs.s3a.bucket.lake.create.conditional.enabled", "false"),
        ("spark.delta.logStore.s3.impl", "io.delta.storage.S3SingleDriverLogStore"),
        ("spark.sql.streaming.checkpointFileManagerClass", "com.example.Files"),
    ],
)
def test_settings_with_which_a_second_writer_is_not_noticed_are_refused(key: str, value: str) -> None:
    with pytest.raises(SpecInvalidError) as raised:
        build_support({}, {key: value})
    assert raised.value.params == {"key": key, "value": value}
    assert f"remove `{key}`" in raised.value.remedies[0]


def test_a_stream_on_s3_is_refused_if_its_session_has_other_files_of_checkpoints() -> None:
    session: Any = Driver()
    checkpoint = Location("s3://lake/checkpoints/orders", S3Files("lake", S3Access(MINIO)))
    with pytest.raises(SpecInvalidError) as raised:
        check_session(session, checkpoint)
    assert "s3://lake/checkpoints/orders" in str(raised.value)
    session.settings["spark.sql.streaming.checkpointFileManagerClass"] = "io.headrace.s3.S3CheckpointFiles"
    check_session(session, checkpoint)
    del session.settings["spark.sql.streaming.checkpointFileManagerClass"]
    check_session(session, locate("lake/checkpoints/orders"))


def test_other_flags_of_the_client_are_allowed() -> None:
    check_settings({"spark.hadoop.fs.s3a.performance.flags": "mkdir, delete"})


def test_a_session_with_s3_has_another_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ENGINE", "on")
    monkeypatch.delenv("CI", raising=False)
    support = build_support({}, {})
    choices = [
        choose_engine({}, None, None, None, NO_STORAGE),
        choose_engine({}, None, None, None, support),
        choose_engine({}, None, None, None, replace(support, own_jars=(Path("other.jar"),))),
        choose_engine(dict(build_support({"lake": S3Access(MINIO)}, {}).settings), None, None, None, support),
    ]
    assert len({choice.key for choice in choices if choice is not None}) == 4


def test_credentials_that_each_command_has_anew_do_not_change_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADRACE_ENGINE", "on")
    monkeypatch.delenv("CI", raising=False)
    keys = []
    for number in range(2):
        redactor, access = Redactor(["hunter22"]), S3Access(MINIO)
        access.tell(redactor.add)
        given = Credentials(
            access_key_id="key",
            secret_access_key=f"secret-{number}/+",
            session_token=f"token-{number}/+",
            expires=datetime.now(UTC) + timedelta(hours=1),
        )
        for secret in (given.secret_access_key, given.session_token):
            redactor.add(str(secret))
        monkeypatch.setattr(access, "credentials", lambda given=given: given)
        choice = choose_engine({}, None, None, redactor, build_support({"lake": access}, {}))
        assert choice is not None
        assert choice.secrets == ("hunter22",)
        keys.append(choice.key)
    assert keys[0] == keys[1]


class Driver:
    """The JVM's side of a session: what it was told."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}
        self.given: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Driver:
        return self

    def hadoopConfiguration(self) -> Driver:
        return self

    def get(self, key: str, default: str | None = None) -> str | None:
        return self.settings.get(key, default)

    def set(self, *values: Any) -> None:
        if len(values) == 2:
            self.settings[values[0]] = values[1]
        else:
            self.given.append(values)


def test_credentials_go_to_the_driver_and_not_into_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    driver: Any = Driver()
    end = share_credentials({"lake": S3Access(MINIO)}, {}, driver, owned=True)
    end()
    assert driver.given == [("lake", "planted-key", SECRET, None, None)]
    assert driver.settings["fs.s3a.bucket.lake.endpoint"] == "http://minio.test:9000"
    assert SECRET not in str(driver.settings)


def test_an_engine_that_knows_a_bucket_is_not_changed_by_its_next_command() -> None:
    driver: Any = Driver()
    share_credentials({"lake": S3Access(MINIO)}, {}, driver, owned=True)()
    driver.settings = MappingProxyType(driver.settings)
    share_credentials({"lake": S3Access(MINIO)}, {}, driver, owned=True)()
    assert len(driver.given) == 2


def test_settings_of_the_user_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    accesses = {ANY_BUCKET: S3Access(MINIO), "lake": S3Access(MINIO)}
    conf = {"spark.hadoop.fs.s3a.bucket.lake.path.style.access": "false"}
    of_user = {"fs.s3a.endpoint": "https://other.test", "fs.s3a.bucket.lake.endpoint.region": "mine"}

    own: Any = Driver()
    share_credentials(accesses, conf, own, owned=True)()
    assert own.settings["fs.s3a.endpoint"] == "http://minio.test:9000"
    assert "fs.s3a.bucket.lake.path.style.access" not in own.settings

    foreign: Any = Driver()
    foreign.settings.update(of_user)
    share_credentials(accesses, conf, foreign, owned=False)()
    assert [one[0] for one in foreign.given] == ["lake"], "other buckets keep their credentials"
    assert foreign.settings == {
        **of_user,
        "fs.s3a.bucket.lake.aws.credentials.provider": "io.headrace.s3.SharedCredentials",
        "fs.s3a.bucket.lake.endpoint": "http://minio.test:9000",
        "fs.s3a.bucket.lake.connection.ssl.enabled": "false",
    }


def test_credentials_that_expire_are_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = iter(range(100))

    def credentials(self: S3Access) -> Credentials:
        ends = datetime.now(UTC) + timedelta(minutes=1)
        return Credentials(
            access_key_id=f"key-{next(made)}", secret_access_key=SECRET, session_token="token", expires=ends
        )

    monkeypatch.setattr(S3Access, "credentials", credentials)
    monkeypatch.setattr(spark, "_RETRY_S", 0.01)
    driver: Any = Driver()
    end = share_credentials({"lake": S3Access(MINIO)}, {}, driver, owned=True)
    until(lambda: len(driver.given) >= 3, "the credentials are renewed")
    end()
    assert [one[1] for one in driver.given][:3] == ["key-0", "key-1", "key-2"]
    assert driver.given[0][4] > datetime.now(UTC).timestamp() * 1000
