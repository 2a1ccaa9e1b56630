"""What the data folder of an embedded broker holds; the broker need not run."""

from __future__ import annotations

from pathlib import Path

DATA = "data"


def has_data(folder: Path) -> bool:
    """Whether the broker of a folder has ever been started."""
    return (folder / DATA / "meta.properties").is_file()


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
                found[name] = value
    return found
