"""What every read gets from the exactly-once protocol, whoever wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headrace.errors import OptionUnsupportedError, SourceLocation
from headrace.plan.option_names import refuse_unknown
from headrace.sources.kafka import LOSS_POLICY
from headrace.sources.limits import (
    DELTA_MAX_BYTES_PER_TRIGGER,
    DELTA_MAX_FILES_PER_TRIGGER,
    FILES_MAX_FILES_PER_TRIGGER,
    KAFKA_MAX_OFFSETS_PER_TRIGGER,
)

FILE_FORMATS = frozenset({"json", "csv", "xml", "parquet", "orc", "text", "avro", "binaryfile"})
_PARSED_FORMATS = frozenset({"json", "csv", "xml"})
ERASURES_ONLY = "headrace.changes"
"""An option that Spark does not know: it marks streams which pass over what others erase, and over
nothing else; whoever sets Delta's own options has decided otherwise."""
ADAPTIVE = "headrace.limit"
"""An option that Spark does not know: it marks sources whose limit follows what batches take."""
_LIMITS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger", "maxFilesPerTrigger")
_CHANGE_OPTIONS = ("skipChangeCommits", "ignoreDeletes", "ignoreChanges", "readChangeFeed", "readChangeData")
_CORRUPT_COLUMN = "_corrupt_record"


@dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """What a query asks of a reader.

    Args:
        streaming: Whether a stream reads.
        format: Spark's name of the format, in lower case.
        options: The options that the user has set.
        columns: The columns of an explicit schema.
    """

    streaming: bool
    format: str
    options: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()

    def has(self, *names: str) -> bool:
        """Whether any of these options is set; Spark ignores their case."""
        keys = {key.lower() for key in self.options}
        return any(name.lower() in keys for name in names)

    def value(self, name: str) -> str | None:
        return next((value for key, value in self.options.items() if key.lower() == name.lower()), None)


def protocol_options(
    request: ReadRequest, location: SourceLocation, kafka_limit: int = KAFKA_MAX_OFFSETS_PER_TRIGGER
) -> dict[str, str]:
    """The options that a read needs beyond what the user has set.

    Args:
        request: What the user asks for.
        location: Where.
        kafka_limit: The records that a first batch from Kafka may take.

    Raises:
        OptionUnsupportedError: The user's options would lose records silently.
        OptionUnknownError: One of them means nothing to the reader.
    """
    options: dict[str, str] = {}
    refuse_unknown(request.format, request.streaming, request.options, location)
    if request.format == "kafka":
        if not request.streaming:
            _refuse_silent_loss(request, location)
        elif not _fails_on_loss(request):
            # Spark passes over what is lost without a word; with the policy a flow goes on as well,
            # and the ledger keeps what was lost.
            options[LOSS_POLICY] = "record"
        _refuse_uncommitted(request, location)
        options["failOnDataLoss"] = "true"
        # Without it Spark also reads the records of transactions that were aborted.
        if not request.has("kafka.isolation.level"):
            options["kafka.isolation.level"] = "read_committed"
        if request.streaming and not request.has(*_LIMITS):
            options |= {"maxOffsetsPerTrigger": str(kafka_limit), ADAPTIVE: "adaptive"}
    elif request.format == "delta" and request.streaming:
        _refuse_silent_loss(request, location)
        if not request.has(*_LIMITS):
            options["maxFilesPerTrigger"] = str(DELTA_MAX_FILES_PER_TRIGGER)
            options["maxBytesPerTrigger"] = str(DELTA_MAX_BYTES_PER_TRIGGER)
            options[ADAPTIVE] = "adaptive"
        if not request.has(*_CHANGE_OPTIONS):
            options |= {"skipChangeCommits": "true", ERASURES_ONLY: "erasures"}
    elif request.format in FILE_FORMATS:
        if request.streaming and not request.has(*_LIMITS):
            options["maxFilesPerTrigger"] = str(FILES_MAX_FILES_PER_TRIGGER)
        if request.format in _PARSED_FORMATS and not _keeps_bad_records(request):
            options["mode"] = "FAILFAST"
    return options


def _keeps_bad_records(request: ReadRequest) -> bool:
    # Spark's own default turns what it cannot parse into a row of nulls. A user who names the
    # column for such records has them in the table, so nothing is lost.
    corrupt = request.value("columnNameOfCorruptRecord") or _CORRUPT_COLUMN
    return request.has("mode") or corrupt in request.columns


def _fails_on_loss(request: ReadRequest) -> bool:
    return (request.value("failOnDataLoss") or "true").lower() == "true"


def _refuse_silent_loss(request: ReadRequest, location: SourceLocation) -> None:
    if _fails_on_loss(request):
        return
    raise OptionUnsupportedError(
        "failOnDataLoss=false passes over lost records without a word",
        location=location,
        remedies=["leave the option out"],
        params={"option": "failOnDataLoss", "value": "false"},
    )


def _refuse_uncommitted(request: ReadRequest, location: SourceLocation) -> None:
    level = request.value("kafka.isolation.level")
    if level is None or level.lower() == "read_committed":
        return
    raise OptionUnsupportedError(
        f"kafka.isolation.level={level} reads the records of transactions that were aborted",
        location=location,
        facts=["no such record counts as one that the source holds, so no proof would hold"],
        remedies=["leave the option out: flows read with read_committed"],
        params={"option": "kafka.isolation.level", "value": level},
    )
