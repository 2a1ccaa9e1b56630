"""The kinds of sources that `verify` reads; see `reader` for how to add one."""

from __future__ import annotations

from headrace.verify.delta import DeltaReader
from headrace.verify.files import FilesReader
from headrace.verify.kafka.reader import KafkaReader
from headrace.verify.opaque import OpaqueRange, OpaqueReader
from headrace.verify.reader import SourceReader
from headrace.verify.source_range import Kinds

READERS: dict[str, type[SourceReader]] = {
    "kafka": KafkaReader,
    "files": FilesReader,
    "delta": DeltaReader,
    "other": OpaqueReader,
}


def known_kinds() -> Kinds:
    """The ranges of all kinds; a kind that is not known has positions that only Spark understands."""
    return Kinds({kind: reader.range for kind, reader in READERS.items()}, OpaqueRange)
