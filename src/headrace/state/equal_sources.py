"""Sources of one query that are easily taken for each other: what tells them apart, and when nothing does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.model.ranges import Position
from headrace.state.identity import SourceIdentity


def differ(now: SourceIdentity, then: SourceIdentity, all_now: Sequence[SourceIdentity]) -> bool:
    """Whether a source of files is another one than the source of the same place was.

    A flow's only source of a folder may choose other files of it. Of several, the choice is what tells
    them apart: one that reads what another has read would read it twice.
    """
    if now.identity.get("path") != then.identity.get("path"):
        return True
    alike = [one for one in all_now if one.identity.get("path") == now.identity.get("path")]
    return len(alike) > 1 and _choice(now) != _choice(then)


def standing_apart(sources: Sequence[SourceIdentity], positions: Mapping[int, Position]) -> str | None:
    """A topic or a table that a query reads in two places which have come to different positions."""
    ended: dict[tuple[str, str], object] = {}
    for source in sources:
        position = positions.get(source.index)
        if source.kind == "delta":
            where = None if position is None else {**position, "sourceVersion": None}
            if ended.setdefault(source.key, where) != where:
                return f"the table {source.identity.get('path')}"
        for topic, topic_id in source.identity.get("topics", {}).items():
            offsets = None if position is None else position.get(topic)
            if ended.setdefault((topic, topic_id), offsets) != offsets:
                return f"the topic {topic}"
    return None


def _choice(source: SourceIdentity) -> tuple[object, object]:
    return source.identity.get("glob"), source.identity.get("recursive")
