"""What the data folder of an embedded broker holds; the broker need not run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from headrace.runtime.places import BROKER_VARIABLE, chosen_folder, shared_broker_folder

DATA = "data"


def has_data(folder: Path) -> bool:
    """Whether the broker of a folder has ever been started."""
    return (folder / DATA / "meta.properties").is_file()


def find_in_shared(topics: Iterable[str], broker: Path | None) -> tuple[list[str], list[str]]:
    """The fact and the remedy for topics that a pipeline's embedded broker does not have, and the shared one
    has. `broker`: the folder of the pipeline's embedded broker."""
    shared = shared_broker_folder()
    if broker in (None, shared, chosen_folder(BROKER_VARIABLE)) or not has_data(shared):
        return [], []
    held = topic_ids(shared)
    found = [topic for topic in topics if topic in held]
    if not found:
        return [], []
    names = " and ".join(f"`{topic}`" for topic in found)
    return (
        [
            "this pipeline has a broker of its own; the shared broker of commands outside of pipelines has "
            f"{names}: {shared}"
        ],
        [f"to use the shared broker, write in the spec:   runtime: {{broker: {shared}}}"],
    )


def topic_ids(folder: Path) -> dict[str, str]:
    """The topics that a broker holds, without Kafka's own, with their ids."""
    found = {}
    for file in (folder / DATA).glob("*-0/partition.metadata"):
        name = file.parent.name.removesuffix("-0")
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        for line in lines:
            key, _, value = line.partition(": ")
            if key == "topic_id" and not name.startswith("__"):
                # Checkpoints have the ids as librdkafka writes them, with `+` and `/`.
                found[name] = value.replace("-", "+").replace("_", "/")
    return found
