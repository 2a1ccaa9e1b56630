"""What the last run's plan was made of, as far as a plan compares itself with it."""

from __future__ import annotations

import json
from typing import Final

from headrace.model.names import Storage

FILE: Final = "last.json"
"""The record's name in the storage's ``plans`` folder."""


def load_fingerprints(storage: Storage) -> dict[str, str]:
    """The hash of each flow's query when it was last run; empty before the first run."""
    try:
        record = json.loads((storage.plans / FILE).read_text(encoding="utf-8"))
        return {one["flow"]: one["fingerprint"] for one in record["flows"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
