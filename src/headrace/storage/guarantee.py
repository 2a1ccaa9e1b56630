"""Whether a storage keeps the promises on which exactly-once rests."""

from __future__ import annotations

from datetime import UTC, datetime

from headrace.errors import StorageUnsafeError
from headrace.storage.location import Location

RECORD = "guarantee.json"
"""The file in a storage that says when its store was tried, and which store that was."""


def check_guarantee(root: Location) -> None:
    """Raise an error if a storage whose store was not tried yet is unsafe for two writers. The record names
    the store: a copy of the data in another store is tried again.

    Raises:
        StorageUnsafeError: The store breaks a promise.
    """
    if root.is_local:
        return
    place = {"storage": root.path, "endpoint": root.files.table_options.get("aws_endpoint_url_s3")}
    found = (root / RECORD).find_json()
    if isinstance(found, dict) and place.items() <= found.items():
        return
    if (broken := root.files.find_unsafe(root.path)) is not None:
        raise unsafe(root, broken)
    (root / RECORD).replace_json({"tried_at": datetime.now(UTC).isoformat(), **place})


def unsafe(root: Location, broken: str) -> StorageUnsafeError:
    return StorageUnsafeError(
        f"the store of {root} is not safe for tables: {broken}",
        facts=("two processes could overwrite each other's commits", "no table was written"),
        remedies=(
            "use a store whose conditional writes hold: AWS S3, or a current version of MinIO, Ceph or R2",
            "then try it:   headrace doctor",
        ),
        params={"storage": str(root), "broken": broken},
    )
