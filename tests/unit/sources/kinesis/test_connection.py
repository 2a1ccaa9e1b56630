"""The connection to a stream: what its settings say, and what is missing."""

from __future__ import annotations

import sys

import pytest

from headrace.errors import KinesisUnreachableError, OffsetsExpiredError, PackageMissingError
from headrace.model.project import AwsSettings
from headrace.sources.kinesis.clients import connect
from headrace.sources.kinesis.connection import KinesisFailure, StreamConnection, find_failure


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "ACCESS_KEY_ID",
        "SECRET_ACCESS_KEY",
        "SESSION_TOKEN",
        "PROFILE",
        "REGION",
        "DEFAULT_REGION",
    ):
        monkeypatch.delenv(f"AWS_{name}", raising=False)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(PackageMissingError) as caught:
        StreamConnection(stream="clicks").open()
    assert caught.value.remedies == ("pip install 'headrace[kinesis]'",)


def test_a_reader_comes_before_the_spec_and_the_spec_before_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the shell")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    alone = connect(AwsSettings(), "clicks", {})
    assert (alone.region, alone.access_key_id) == ("eu-north-1", "of the shell")
    spec = AwsSettings(region="eu-west-1", profile="shop")
    found = connect(spec, "clicks", {"role_arn": "reader"})
    assert (found.region, found.profile, found.role_arn) == ("eu-west-1", "shop", "reader")
    assert found.access_key_id is None, "the profile decides"
    assert connect(spec, "clicks", {"region": "us-east-1"}).region == "us-east-1"


def test_an_arn_names_the_stream_and_the_region() -> None:
    arn = "arn:aws:kinesis:eu-central-1:123456789012:stream/clicks"
    found = connect(AwsSettings(region="eu-west-1"), arn, {})
    assert (found.stream, found.region, found.names) == ("clicks", "eu-central-1", {"StreamARN": arn})


def test_options_give_the_connection_back_in_any_letter_case() -> None:
    connection = StreamConnection(stream="s", region="r", access_key_id="k", secret_access_key="x")
    options = {name.lower(): value for name, value in connection.to_options().items()}
    assert StreamConnection.from_options(options) == connection
    assert "x" not in repr(connection)


@pytest.mark.parametrize("kind", [KinesisUnreachableError, OffsetsExpiredError])
def test_an_error_of_a_process_of_spark_keeps_its_fields(
    kind: type[KinesisUnreachableError] | type[OffsetsExpiredError],
) -> None:
    error = kind("it failed", facts=("a {fact}",), remedies=("do it",), params={"stream": "s"})
    text = f"Traceback ..\nheadrace.KinesisFailure: {KinesisFailure(error)}\n\tat org.apache.spark"
    found = find_failure(text)
    assert found is not None and found[0] is kind
    assert found[1]["facts"] == ["a {fact}"] and found[1]["remedies"] == ["do it"]
