"""Chooses the embedded broker of a pipeline."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.model.broker import BrokerChoice
from headrace.runtime.broker_data import has_data, topic_ids
from headrace.runtime.places import BROKER_VARIABLE, chosen_folder, shared_broker_folder
from headrace.state.identity import find_checkpoints, load_identity
from headrace.storage.layout import Storage

OWN_FOLDER = ".headrace"
"""The folder beside the spec for what belongs to the pipeline on this machine."""

_KEY = re.compile(r"^[^#\n]*\bbroker\s*:[ \t]*([^\n#,}]*)", re.MULTILINE)


def choose_broker(
    pipeline: str, folder: Path, written: str | None, storages: Iterable[Storage]
) -> BrokerChoice:
    """The broker of `HEADRACE_BROKER_DIR`, else the one that the spec names, else that of the pipeline's
    folder.

    A pipeline whose checkpoints have read topics of the shared broker goes on with the shared broker: an
    empty one of its own would have none of these topics.
    """
    if (chosen := chosen_folder(BROKER_VARIABLE)) is not None:
        return BrokerChoice(chosen, "variable", pipeline)
    if written is not None:
        return BrokerChoice(_path(folder, written), "spec", pipeline)
    own, shared = folder / OWN_FOLDER / "broker", shared_broker_folder()
    if has_data(shared):
        held = set(topic_ids(shared).values())
        read = {one for storage in storages for one in _read_topics(storage)} if held else set()
        if read & held and not (read & set(topic_ids(own).values())):
            return BrokerChoice(shared, "earlier", pipeline)
    return BrokerChoice(own, "pipeline", pipeline)


def guess_broker(spec: Path) -> BrokerChoice | None:
    """The broker of a pipeline whose spec has an error; ``None`` if the folder cannot be told."""
    pipeline = spec.parent.name
    if (chosen := chosen_folder(BROKER_VARIABLE)) is not None:
        return BrokerChoice(chosen, "variable", pipeline)
    try:
        named = [one.strip().strip("'\"") for one in _KEY.findall(spec.read_text(encoding="utf-8"))]
    except (OSError, UnicodeDecodeError):
        return None
    if named:
        is_plain = len(named) == 1 and bool(named[0]) and "${" not in named[0]
        return BrokerChoice(_path(spec.parent, named[0]), "spec", pipeline) if is_plain else None
    own = spec.parent / OWN_FOLDER / "broker"
    if not has_data(own) and has_data(shared_broker_folder()):
        # Only the storage tells whether the pipeline goes on with the shared broker.
        return None
    return BrokerChoice(own, "pipeline", pipeline)


def _path(folder: Path, written: str) -> Path:
    return Path(os.path.normpath(folder / Path(written).expanduser()))


def _read_topics(storage: Storage) -> Iterator[str]:
    """The ids of the topics that the checkpoints of a storage on this machine have read."""
    if storage.root.files.scheme != "file":
        return
    try:
        checkpoints = [one for _, _, known in find_checkpoints(storage) for one in known]
    except OSError:
        return
    for checkpoint in checkpoints:
        # A damaged checkpoint is reported by the command that needs it.
        with suppress(HeadraceError, OSError):
            for source in load_identity(checkpoint).sources:
                topics = source.identity.get("topics")
                if isinstance(topics, Mapping):
                    yield from (one for one in topics.values() if one is not None)
