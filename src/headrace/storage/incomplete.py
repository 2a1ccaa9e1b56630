"""The mark of a storage that is the target of a copy which has not ended. No command uses such a storage."""

from __future__ import annotations

import shlex

from headrace.errors import StorageIncompleteError
from headrace.storage.location import Location

MARKER = "copying.json"
"""The file in the target that names the source. A copy writes it first, and removes it last."""


def load_source(root: Location) -> str | None:
    """The storage of which a storage is an incomplete copy; ``None`` for a complete storage."""
    found = (root / MARKER).find_json()
    return None if found is None else str(found["from"])


def copy_command(source: str, target: str) -> str:
    return f"headrace storage copy --storage {shlex.quote(source)} --to {shlex.quote(target)}"


def check_complete(root: Location) -> None:
    if (source := load_source(root)) is not None:
        raise StorageIncompleteError(
            f"the storage {root} is an incomplete copy of {source}",
            facts=("nothing was read or written",),
            remedies=(f"finish the copy:   {copy_command(source, root.path)}",),
            params={"storage": str(root), "source": source},
        )
