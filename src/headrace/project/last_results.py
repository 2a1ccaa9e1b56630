"""The last plan and the last proof of a pipeline, kept on this machine for the dashboard.

`plan` and `verify` write nothing into a storage, so their results are in the cache of the user who ran them.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from headrace.model.project import ProjectSettings
from headrace.runtime.places import cache_folder, replace_file

_logger = logging.getLogger(__name__)

Kind = Literal["plan", "proof"]


def keep_result(settings: ProjectSettings, kind: Kind, data: Mapping[str, Any]) -> None:
    """Keep the newest result of a command, which also succeeds if the cache cannot be written."""
    file = _file(settings, settings.name, kind)
    text = json.dumps({"kept": datetime.now(UTC).isoformat(), **data}, default=str)
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(file, settings.redactor(text), is_private=True)
    except OSError as error:
        _logger.debug("the result is not kept: %s", error)


def load_result(settings: ProjectSettings, pipeline: str, kind: Kind) -> Mapping[str, Any] | None:
    """The newest result of a pipeline in the storage of these settings; ``None`` if this machine has none."""
    try:
        found = json.loads(_file(settings, pipeline, kind).read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else None
    except (OSError, ValueError):
        return None


def _file(settings: ProjectSettings, pipeline: str, kind: Kind) -> Path:
    name = hashlib.sha256(f"{settings.storage.root}\n{pipeline}".encode()).hexdigest()[:24]
    return cache_folder() / "ui" / f"{name}.{kind}.json"
