"""Spark's own checkpoints: the batches that they planned and finished, and the life of a flow through its
generations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Literal

from headrace.verify.commits import Batches, CommitClaims, Ledger, Opening, feeding_checkpoints
from headrace.verify.source_range import Partition, Position, SourceRange
from headrace.verify.stored import StoredPath, gather

_KEPT = 200
"""Spark keeps the last hundred batches; more are not read even if Spark is set to keep more."""


IDENTITY = "headrace.json"
"""The file of a checkpoint that names its pipeline, its flow and its sources."""
RENAMING = "renaming.json"
"""The file beside the checkpoints of a renamed flow while they are copied."""
StreamPartition = tuple[Partition, str | None]
"""A partition, with the id of its stream."""
Pairs = list[tuple[int, int]]
"""Ranges of offsets, ``(from, until)`` each."""
Chain = list[tuple[str, Opening | None]]


@dataclass(frozen=True, kw_only=True)
class CheckpointLog:
    folder: StoredPath
    generation: int
    checkpoint: str | None  # the id in its identity; ``None`` where the identity is missing or damaged
    planned: int = -1  # the last batch in its offset log; -1 before the first
    finished: int = -1  # the last batch in its commit log; -1 before the first
    # The end of each planned batch by source index, as far as Spark keeps it.
    positions: Mapping[int, tuple[Position | None, ...]] = field(default_factory=dict)


def read_json(path: StoredPath) -> Mapping[str, Any]:
    """A JSON object; empty where the file is missing or is not one."""
    try:
        value = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def load_checkpoints(folder: StoredPath) -> tuple[CheckpointLog, ...]:
    """Read the generations of one flow, oldest first.

    The commit log is read before the offset log, and both before the table: whatever a running
    flow does in between can only make the table hold more than the checkpoint says.
    """
    if any(file.name == RENAMING for file in folder.list_files()):
        # A part of the checkpoints of a flow that had another name, which are whole in their own folder.
        return ()
    found = [_load(path, int(path.name)) for path in folder.list_folders() if path.name.isdigit()]
    return tuple(sorted(found, key=lambda log: log.generation))


def _load(folder: StoredPath, generation: int) -> CheckpointLog:
    finished = _batches(folder / "commits")
    planned = _batches(folder / "offsets")
    identity = read_json(folder / IDENTITY)
    kept = planned[-_KEPT:]
    positions = gather(lambda batch: _positions(folder / "offsets" / str(batch)), kept)
    return CheckpointLog(
        folder=folder,
        generation=generation,
        checkpoint=str(identity["checkpoint"]) if "checkpoint" in identity else None,
        planned=max(planned, default=-1),
        finished=max(finished, default=-1),
        positions={one: found for one, found in zip(kept, positions, strict=True) if found is not None},
    )


def _batches(folder: StoredPath) -> list[int]:
    return sorted(int(file.name) for file in folder.list_files() if file.name.isdigit())


def _positions(path: StoredPath) -> tuple[Position | None, ...] | None:
    """The lines of an offset log after its version and its settings; ``None`` if it is not one."""
    try:
        version, _, *lines = path.read_text().splitlines()
        if version != "v1":
            return None
        return tuple(None if line == "-" else json.loads(line) for line in lines)
    except (FileNotFoundError, ValueError):
        return None


@dataclass(frozen=True, kw_only=True)
class Generation:
    checkpoint: str
    opening: Opening | None  # ``None`` where neither log nor ledger hold the opening commit any more
    batches: tuple[Batches, ...]  # by version; a batch that log and ledger both hold is one entry


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """A flow with all generations since its last full refresh."""

    flow: str
    generations: tuple[Generation, ...]
    in_force: bool  # whether the table names this flow's last checkpoint as one that feeds it
    late: tuple[Batches, ...] = ()  # committed through a checkpoint after it had been fenced
    unknown_versions: tuple[tuple[int, int], ...] = ()  # (first, last): neither in the log nor in the ledger
    since: int | None = None  # judged only from this version on, because the user asked so

    @property
    def batches(self) -> tuple[Batches, ...]:
        return tuple(batch for generation in self.generations for batch in generation.batches)

    @property
    def last(self) -> Batches | None:
        return next((g.batches[-1] for g in reversed(self.generations) if g.batches), None)

    @property
    def sources(self) -> tuple[SourceRange, ...]:
        return tuple(source for batch in self.batches for source in batch.sources)

    @property
    def last_sources(self) -> tuple[SourceRange, ...]:
        return () if self.last is None else self.last.sources

    def declared(self, what: Literal["repeats", "losses"]) -> dict[StreamPartition, Pairs]:
        """The offsets that openings declare as read again or as lost, as often as they do."""
        found: dict[StreamPartition, Pairs] = {}
        for generation in self.generations:
            sources = generation.batches[0].sources if generation.batches else ()
            for one in () if generation.opening is None else getattr(generation.opening, what):
                ids = (source.id_of(one.partition) for source in sources)
                key = (one.partition, next(filter(None, ids), None))
                found.setdefault(key, []).append((one.low, one.high))
        return found

    @property
    def checkpoint(self) -> str:
        return self.generations[-1].checkpoint

    @property
    def names(self) -> set[str]:
        """The flow's name, and those that it had before."""
        return {self.flow, *(batch.flow for batch in self.batches)}

    @property
    def source_kinds(self) -> set[str]:
        return {source.kind for source in self.sources}

    @property
    def fenced(self) -> set[str]:
        return {g.opening.fences for g in self.generations if g.opening is not None and g.opening.fences}

    @property
    def number(self) -> int:
        """The generation's number, 0 if neither log nor ledger has it."""
        opening = self.generations[-1].opening
        return 0 if opening is None else opening.generation

    def with_since(self, version: int) -> Lineage:
        """Only what was committed at a version or later; generations without such batches go."""
        kept = []
        for generation in self.generations:
            batches = tuple(b for b in generation.batches if b.first_version >= version)
            opening = generation.opening
            if opening is not None and opening.version < version:
                opening = None
            if batches or opening is not None or generation is self.generations[-1]:
                kept.append(replace(generation, batches=batches, opening=opening))
        late = tuple(b for b in self.late if b.first_version >= version)
        return replace(self, generations=tuple(kept), late=late, unknown_versions=(), since=version)


def build_lineages(
    metadata: CommitClaims, ledger: Ledger, first_version: int, properties: Mapping[str, str]
) -> tuple[Lineage, ...]:
    """Put the generations of every flow in order; before ``first_version`` there is only the ledger."""
    folded = _folded(ledger)
    older = [b for b in folded if b.last_version < first_version]
    older += [cut for b in folded if (cut := _before(b, first_version, metadata.batches)) is not None]
    batches = sorted([*older, *metadata.batches], key=lambda b: (b.first_version, b.first))
    early = (o for fold in ledger.folds for o in fold.openings if o.version < first_version)
    openings = {o.version: o for o in (*early, *metadata.openings)}
    ordered = [openings[version] for version in sorted(openings)]
    flows, dropped = _order(ordered)
    feeding = feeding_checkpoints(properties)
    _add_unopened(flows, dropped, ordered, batches, feeding)
    by_checkpoint: dict[str, list[Batches]] = {}
    for batch in batches:
        by_checkpoint.setdefault(batch.checkpoint, []).append(batch)
    return tuple(
        Lineage(
            flow=feeding.get(chain[-1][0], flow),
            generations=tuple(
                Generation(checkpoint=c, opening=o, batches=tuple(by_checkpoint.get(c, ()))) for c, o in chain
            ),
            in_force=chain[-1][0] in feeding,
            late=_late(chain, by_checkpoint),
            unknown_versions=_unknown_versions(chain, by_checkpoint, ledger, first_version, flow),
        )
        for flow, chain in flows.items()
    )


def _order(openings: Iterable[Opening]) -> tuple[dict[str, Chain], set[str]]:
    """The generations of each flow since its last full refresh, and the checkpoints before it."""
    flows: dict[str, Chain] = {}
    dropped: set[str] = set()
    for opening in openings:
        if opening.reason == "full-refresh":
            dropped.update(checkpoint for checkpoint, _ in flows.pop(opening.flow, []))
        elif opening.renamed_from is not None:
            flows[opening.flow] = flows.pop(opening.renamed_from, [])
            if any(checkpoint == opening.checkpoint for checkpoint, _ in flows[opening.flow]):
                continue
        flows.setdefault(opening.flow, []).append((opening.checkpoint, opening))
    return flows, dropped


def _folded(ledger: Ledger) -> list[Batches]:
    """The ledger's batches; what a later fold of the same flow repeats counts once."""
    found = []
    covered: dict[str, int] = {}
    for fold in ledger.folds:
        folder = fold.path.parent.name
        found += [b for b in fold.batches if b.first_version > covered.get(folder, -1)]
        covered[folder] = max(covered.get(folder, -1), fold.last_version)
    return found


def _unknown_versions(
    chain: Chain, batches: Mapping[str, list[Batches]], ledger: Ledger, first_version: int, flow: str
) -> tuple[tuple[int, int], ...]:
    names = {flow, *(o.flow for _, o in chain if o is not None)}
    names |= {batch.flow for checkpoint, _ in chain for batch in batches.get(checkpoint, ())}
    holes = []
    next_version = 0
    for fold in ledger.folds:
        if fold.flow in names:
            if fold.first_version > next_version:
                holes.append((next_version, min(fold.first_version, first_version) - 1))
            next_version = max(next_version, fold.last_version + 1)
    if next_version < first_version:
        holes.append((next_version, first_version - 1))
    return tuple(hole for hole in holes if hole[0] <= hole[1])


def _late(chain: Chain, batches: Mapping[str, list[Batches]]) -> tuple[Batches, ...]:
    return tuple(
        batch
        for _, opening in chain
        if opening is not None and opening.fences is not None
        for batch in batches.get(opening.fences, ())
        if batch.last_version > opening.version
    )


def _add_unopened(
    flows: dict[str, Chain],
    dropped: set[str],
    openings: Iterable[Opening],
    batches: Iterable[Batches],
    feeding: Mapping[str, str],
) -> None:
    """Checkpoints whose opening neither log nor ledger holds any more: the oldest of their flow."""
    known = {checkpoint for chain in flows.values() for checkpoint, _ in chain} | dropped
    refreshed = {}
    for opening in openings:
        if opening.reason == "full-refresh":
            refreshed[opening.flow] = opening.version
            known.add(opening.fences or opening.checkpoint)
    unopened: dict[str, list[str]] = {}
    for batch in batches:
        if batch.checkpoint not in known and batch.first_version >= refreshed.get(batch.flow, 0):
            known.add(batch.checkpoint)
            unopened.setdefault(batch.flow, []).append(batch.checkpoint)
    for checkpoint, flow in feeding.items():
        if checkpoint not in known:
            unopened.setdefault(flow, []).append(checkpoint)
    for flow, checkpoints in unopened.items():
        chain: Chain = [(checkpoint, None) for checkpoint in checkpoints]
        flows[flow] = chain + flows.get(flow, [])


def _before(merged: Batches, first_version: int, logged: Iterable[Batches]) -> Batches | None:
    """The part of a merged ledger entry that lies before the log, where it reaches into the log.

    The part's end is where the first batch in the log starts; without such a batch it is unknown,
    and the entry is left out. Its counts are what remains after the log's own batches.
    """
    if not (merged.first_version < first_version <= merged.last_version):
        return None
    inside = [
        b for b in logged if b.checkpoint == merged.checkpoint and merged.first <= b.first <= merged.last
    ]
    if not inside:
        return None
    first = min(inside, key=lambda b: b.first)
    ends = {source.index: source.start for source in first.sources}
    return replace(
        merged,
        last=first.first - 1,
        last_version=first_version - 1,
        counts=reduce(lambda left, batch: left.plus(batch.counts, -1), inside, merged.counts),
        sources=tuple(_source_before(one, ends.get(one.index), inside) for one in merged.sources),
    )


def _source_before(merged: SourceRange, end: Position | None, inside: Iterable[Batches]) -> SourceRange:
    later = [one for batch in inside for one in batch.sources if one.index == merged.index]
    until = merged.until if end is None else end
    return replace(merged, until=until, marks=merged.marks_without(later))
