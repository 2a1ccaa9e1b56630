"""Chooses the embedded broker of a pipeline."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from headrace.declare.bundle import bundle_above
from headrace.errors import HeadraceError
from headrace.model.broker import BrokerChoice
from headrace.runtime.broker_record import has_data, topic_ids
from headrace.runtime.places import (
    BROKER_VARIABLE,
    cache_folder,
    chosen_folder,
    replace_file,
    shared_broker_folder,
)
from headrace.state.identity import FILE, find_checkpoints, load_identity
from headrace.storage.layout import Storage
from headrace.storage.location import Location

OWN_FOLDER = ".headrace"
"""The folder beside the spec for what belongs to the pipeline on this machine."""

_RESOURCES = re.compile(r"^resources\s*:", re.MULTILINE)
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
    if has_data(shared) and _reads_shared(shared, own, storages):
        return BrokerChoice(shared, "earlier", pipeline)
    return BrokerChoice(own, "pipeline", pipeline)


def guess_broker(spec: Path) -> BrokerChoice | None:
    """The broker of a pipeline whose spec has an error; ``None`` if the folder cannot be told."""
    if (chosen := chosen_folder(BROKER_VARIABLE)) is not None:
        return BrokerChoice(chosen, "variable", spec.parent.name)
    try:
        text = spec.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if _RESOURCES.search(text) and (bundle := bundle_above(spec)) is not None:
        # The folder of a bundle is that of the pipelines which its files declare.
        spec, text = bundle, ""
    pipeline = spec.parent.name
    named = [one.strip().strip("'\"") for one in _KEY.findall(text)]
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


def _reads_shared(shared: Path, own: Path, storages: Iterable[Storage]) -> bool:
    """Whether the checkpoints of storages have read topics of the shared broker, and none of the own one."""
    held, mine = set(topic_ids(shared).values()), set(topic_ids(own).values())
    marks = {file: mark for one in storages for file, mark in _identities(one)} if held else {}
    if not marks:
        return False
    # Reading many checkpoints is slow, so the answer is kept until a checkpoint or a topic is new.
    facts = json.dumps([sorted(held), sorted(mine), sorted((one.path, mark) for one, mark in marks.items())])
    key = hashlib.sha256(facts.encode()).hexdigest()
    kept = cache_folder() / "brokers" / f"{hashlib.sha256(str(own).encode()).hexdigest()[:16]}.json"
    with suppress(OSError, ValueError, LookupError, TypeError):
        known = json.loads(kept.read_text())
        if known["key"] == key:
            return bool(known["goes_on"])
    read = {one for file in marks for one in _read_topics(file.parent)}
    goes_on = bool(read & held) and not read & mine
    with suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        replace_file(kept, json.dumps({"key": key, "goes_on": goes_on}))
    return goes_on


def _identities(storage: Storage) -> Iterator[tuple[Location, str]]:
    """The identity files of the checkpoints of a storage on this machine, with what tells their versions
    apart."""
    if not storage.root.is_local:
        return
    with suppress(OSError):
        for _, _, known in find_checkpoints(storage):
            for checkpoint in known:
                file = checkpoint / FILE
                if (state := file.look()) is not None:
                    yield file, state.mark


def _read_topics(checkpoint: Location) -> Iterator[str]:
    """The ids of the topics that a checkpoint has read."""
    # A damaged checkpoint is reported by the command that needs it.
    with suppress(HeadraceError, OSError):
        for source in load_identity(checkpoint).sources:
            topics = source.identity.get("topics")
            if isinstance(topics, Mapping):
                yield from (one for one in topics.values() if one is not None)
