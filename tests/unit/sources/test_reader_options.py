"""Every read stands under the protocol, whoever wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import (
    OptionInvalidError,
    OptionUnknownError,
    OptionUnsupportedError,
    SourceLocation,
    SourceUnsupportedError,
    StorageUnsupportedError,
)
from headrace.model.project import ProjectSettings
from headrace.sources.files.options import FORMAT_OPTION
from headrace.sources.files.reader import FILES_MAX_AGE, FILES_MAX_BYTES_PER_TRIGGER
from headrace.sources.kafka.meter import KAFKA_MAX_OFFSETS_PER_TRIGGER
from headrace.sources.kafka.read import LOSS_POLICY
from headrace.sources.kafka.reader import protocol_options
from headrace.sources.registry import kind_for
from headrace.sources.requests import ADAPTIVE, ReaderDefaults, ReadRequest
from headrace.storage.layout import Storage

HERE = SourceLocation("orders.py", 3)
SETTINGS = ProjectSettings(
    name="shop", file=Path("headrace.yml"), profile="dev", storage=Storage.at(Path("lake")), libraries=()
)
DEFAULTS = ReaderDefaults(settings=SETTINGS)


def given(
    format: str, *, streaming: bool = True, columns: tuple[str, ...] = (), **options: str
) -> dict[str, str]:
    request = ReadRequest(streaming=streaming, format=format, options=options, columns=columns)
    if format == "kafka":
        return protocol_options(request, HERE, KAFKA_MAX_OFFSETS_PER_TRIGGER)
    return kind_for(format).reader.options(request, HERE, DEFAULTS)


def test_kafka_is_read_committed_with_loss_refused_and_a_bounded_batch() -> None:
    assert given("kafka") == {
        "kafka.isolation.level": "read_committed",
        "failOnDataLoss": "true",
        "maxOffsetsPerTrigger": str(KAFKA_MAX_OFFSETS_PER_TRIGGER),
        ADAPTIVE: "adaptive",
    }


def test_what_the_user_chose_stays_whatever_its_case() -> None:
    chosen: dict[str, Any] = {"KAFKA.isolation.LEVEL": "read_committed", "maxoffsetspertrigger": "7"}
    assert given("kafka", **chosen) == {"failOnDataLoss": "true"}
    assert "maxFilesPerTrigger" not in given("delta", maxBytesPerTrigger="1g")
    assert "mode" not in given("json", streaming=False, mode="DROPMALFORMED")
    files = given("json", maxfilespertrigger="1", MAXFILEAGE="7d")
    assert not {"maxFilesPerTrigger", "maxBytesPerTrigger", "maxFileAge"} & set(files)


def test_passing_over_lost_records_is_the_policy_to_record_them() -> None:
    options = given("kafka", failOnDataLoss="False")
    assert (options["failOnDataLoss"], options[LOSS_POLICY]) == ("true", "record")


@pytest.mark.parametrize(("format", "streaming"), [("kafka", False), ("delta", True)])
def test_passing_over_lost_records_is_refused_where_nothing_could_record_them(
    format: str, streaming: bool
) -> None:
    with pytest.raises(OptionUnsupportedError) as caught:
        given(format, streaming=streaming, failOnDataLoss="false")
    assert caught.value.location == HERE


@pytest.mark.parametrize(
    ("format", "streaming", "option", "suggestion"),
    [
        ("kafka", True, "subscibe", "subscribe"),
        ("kafka", True, "startingOffset", "startingOffsets"),
        ("kafka", True, "maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("kafka", True, "maxBytesPerTrigger", "maxOffsetsPerTrigger"),
        ("kafka", True, "endingOffsets", "startingOffsets"),
        ("kafka", True, "headrace.allowNoTopic", "headrace.allowNoTopics"),
        ("delta", True, "startVersion", "startingVersion"),
        ("delta", False, "versionAs", None),
        ("delta", True, "whatever", None),
        ("json", True, "maxFilesPerTriger", "maxFilesPerTrigger"),
        ("parquet", True, "recursiveFileLookUps", "recursiveFileLookup"),
        ("csv", True, "headre", "header"),
        ("csv", False, "headre", "header"),
        ("parquet", False, "maxFilesPerTrigger", None),
        ("xml", True, "rowtags", "rowTag"),
        ("json", True, "cloudFiles.schemaLocation", None),
        ("rate", True, "rowPerSecond", "rowsPerSecond"),
    ],
)
def test_an_option_that_spark_would_ignore_is_named(
    format: str, streaming: bool, option: str, suggestion: str | None
) -> None:
    with pytest.raises(OptionUnknownError) as caught:
        given(format, streaming=streaming, **{option: "1"})
    error = caught.value
    assert (error.location, error.params["option"]) == (HERE, option)
    if suggestion is not None:
        assert error.params["suggestion"] == suggestion


def test_what_is_handed_on_to_others_passes() -> None:
    given("kafka", **{"kafka.anything.at.all": "1", "HEADRACE.ALLOWNOTOPICS": "true", "MINPARTITIONS": "2"})
    given("delta", **{"fs.s3a.endpoint": "x", "excluderegex": "tmp"})
    given("json", **{"INFERSCHEMA": "true", "fs.s3a.endpoint": "x", "compression": "gzip"})
    given("json", streaming=False, **{"PATHGLOBFILTER": "*", "spark.any": "1", "modifiedBefore": "x"})
    given("jdbc", streaming=False, anything="1")
    given("rate", rowspersecond="1")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("maxFilesPerTrigger", "few"),
        ("maxFilesPerTrigger", "0"),
        ("maxBytesPerTrigger", "64 parts"),
        ("skipChangeCommits", "yes"),
    ],
)
def test_the_value_of_an_option_of_a_table_stream_is_checked(option: str, value: str) -> None:
    with pytest.raises(OptionInvalidError) as caught:
        given("delta", **{option: value})
    assert caught.value.location == HERE
    assert option in caught.value.summary and repr(value) in caught.value.summary


@pytest.mark.parametrize("value", ["1000", "64mb", "1g", "512K"])
def test_a_table_stream_takes_sizes_with_a_unit(value: str) -> None:
    given("delta", maxBytesPerTrigger=value, maxFilesPerTrigger="3", skipChangeCommits="TRUE")


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("mode", [{}, {"mode": "PERMISSIVE"}, {"mode": "DROPMALFORMED"}])
def test_the_users_own_file_readers_keep_sparks_modes(mode: dict[str, str], streaming: bool) -> None:
    for format in ("json", "csv", "xml"):
        assert "mode" not in given(format, streaming=streaming, **mode)


@pytest.mark.parametrize("format", ["json", "csv"])
def test_read_files_stops_at_a_malformed_record(format: str) -> None:
    own = {FORMAT_OPTION: format}
    assert given(format, **own)["mode"] == "FAILFAST"
    for mode in ("dropmalformed", "PERMISSIVE"):
        with pytest.raises(OptionUnsupportedError) as caught:
            given(format, **own, mode=mode)
        assert caught.value.params["option"] == "mode"
    assert "mode" not in given(format, **own, mode="PERMISSIVE", columns=("_corrupt_record",))
    assert "mode" not in given(format, **own, columns=("id", "_corrupt_record"))
    assert "mode" not in given(format, **own, columns=("id", "bad"), columnNameOfCorruptRecord="bad")
    assert given(format, **own, columns=("id",), columnNameOfCorruptRecord="bad")["mode"] == "FAILFAST"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("ignoreMissingFiles", "true"),
        ("ignorecorruptfiles", "TRUE"),
        ("fileNameOnly", "true"),
        ("cleanSource", "archive"),
        ("modifiedAfter", "2026-01-01T00:00:00"),
        ("maxFilesPerTrigger", "many"),
        ("maxBytesPerTrigger", "1g"),
    ],
)
def test_a_stream_of_files_refuses_what_would_lose_records_silently(option: str, value: str) -> None:
    with pytest.raises(OptionUnsupportedError) as caught:
        given("json", **{option: value})
    assert caught.value.params["option"].lower() == option.lower()


def test_both_limits_of_files_at_once_are_refused() -> None:
    with pytest.raises(OptionUnsupportedError):
        given("json", maxFilesPerTrigger="1", maxBytesPerTrigger="1")


def test_a_stream_of_files_never_leaves_a_file_out() -> None:
    options = given("parquet")
    assert options["ignoreMissingFiles"] == options["ignoreCorruptFiles"] == "false"
    assert options["maxFileAge"] == FILES_MAX_AGE
    assert given("json", cleanSource="off")


def test_the_limit_of_a_batch_fits_the_files_that_are_there(tmp_path: Path) -> None:
    def limit(path: Path) -> dict[str, str]:
        request = ReadRequest(streaming=True, format="json", path=str(path))
        options = kind_for(request.format).reader.options(request, HERE, DEFAULTS)
        return {k: v for k, v in options.items() if "PerTrigger" in k}

    assert limit(tmp_path / "not there") == {"maxFilesPerTrigger": "1000"}
    (tmp_path / "small.json").write_text("{}")
    assert limit(tmp_path) == {"maxFilesPerTrigger": "1000"}
    with (tmp_path / "large.json").open("wb") as file:
        file.truncate(4 * 1024 * 1024)
    assert limit(tmp_path) == {"maxBytesPerTrigger": str(FILES_MAX_BYTES_PER_TRIGGER)}


def test_only_local_files_are_read_without_files_of_checksums() -> None:
    def options(path: str) -> dict[str, str]:
        request = ReadRequest(streaming=True, format="json", path=path)
        return kind_for(request.format).reader.options(request, HERE, DEFAULTS)

    assert options("/in")["fs.file.impl"].endswith("RawLocalFileSystem")
    # The client of S3 buffers in local files, and casts Hadoop's class of them.
    assert not [key for key in options("s3a://bucket/in") if key.startswith("fs.")]


def test_batch_reads_have_no_limit() -> None:
    assert given("parquet", streaming=False) == {}
    assert given("delta", streaming=False) == {}
    assert "maxOffsetsPerTrigger" not in given("kafka", streaming=False)


def test_records_of_aborted_transactions_are_refused() -> None:
    with pytest.raises(OptionUnsupportedError) as caught:
        given("kafka", **{"kafka.isolation.level": "read_uncommitted"})
    assert caught.value.params["option"] == "kafka.isolation.level"
    assert caught.value.location == HERE


def test_only_a_stream_over_a_table_needs_a_supported_kind_of_storage() -> None:
    assert given("delta", streaming=False, path="gs://bucket/orders") == {}
    with pytest.raises(StorageUnsupportedError) as caught:
        given("delta", path="gs://bucket/orders")
    assert caught.value.location == HERE


def test_a_source_that_only_databricks_has_is_refused_by_name() -> None:
    request = ReadRequest(streaming=True, format="kinesis")
    with pytest.raises(SourceUnsupportedError) as caught:
        kind_for("kinesis").reader.options(request, SourceLocation("a.py", 1), DEFAULTS)
    assert caught.value.params == {"format": "kinesis"}
