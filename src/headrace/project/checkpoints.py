"""The checkpoints of a pipeline's flows: show, validate and repair them, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headrace.errors import FlowUnknownError, did_you_mean
from headrace.maintain.checkpoints import FlowCheckpoint, Problem, find_problems, load_checkpoints
from headrace.model.project import ProjectSettings
from headrace.project.operations import logged_operation, new_update
from headrace.state.lease import held_leases
from headrace.storage.layout import Storage


@dataclass(frozen=True, kw_only=True)
class CheckpointReport:
    checkpoint: FlowCheckpoint
    problems: tuple[Problem, ...]  # its damaged files; none if it is whole

    @property
    def can_be_repaired(self) -> bool:
        return bool(self.problems) and all(one.repair is not None for one in self.problems)

    def to_json(self) -> dict[str, Any]:
        return {
            "flow": self.checkpoint.flow,
            "dataset": str(self.checkpoint.dataset),
            "path": str(self.checkpoint.path),
            "problems": [
                {
                    "path": str(one.file),
                    "found": one.found,
                    "repair": None if one.repair is None else one.repair.action,
                }
                for one in self.problems
            ],
        }


class Checkpoints:
    def __init__(self, settings: ProjectSettings) -> None:
        self._settings = settings

    def show(self, flows: Sequence[str] = ()) -> tuple[FlowCheckpoint, ...]:
        found = tuple(load_checkpoints(self._settings.storage, lambda flow: not flows or flow in flows))
        known = {one.flow for one in found}
        for name in flows:
            if name not in known:
                every = {one.flow for one in load_checkpoints(self._settings.storage, lambda _: True)}
                raise FlowUnknownError(
                    f"the storage of {self._settings.name} has no checkpoint of a flow `{name}`",
                    remedies=did_you_mean(name, every, "list all checkpoints:   headrace checkpoint show"),
                    params={"flow": name},
                )
        return found

    def validate(self, flows: Sequence[str] = ()) -> tuple[CheckpointReport, ...]:
        """Check the files that a run needs to continue."""
        return tuple(
            CheckpointReport(checkpoint=one, problems=tuple(find_problems(one))) for one in self.show(flows)
        )

    def repair(self, flows: Sequence[str]) -> tuple[CheckpointReport, ...]:
        """Repair what can be repaired, and keep the damaged files in the storage's folder ``backups``.
        After a crash, the next repair continues. Return the repaired checkpoints."""
        storage, update = self._settings.storage, new_update()
        names = tuple(dict.fromkeys(one.dataset for one in self.show(flows)))
        with (
            logged_operation(self._settings, update, "CHECKPOINT_REPAIR", names) as outcome,
            held_leases(storage, names),
        ):
            # Read again: a run may have ended since the caller has looked.
            done = tuple(one for one in self.validate(flows) if one.can_be_repaired)
            for report in done:
                repair_files(report, storage)
            outcome["checkpoints"] = [one.to_json() for one in done]
        return done


def repair_files(report: CheckpointReport, storage: Storage) -> None:
    found = report.checkpoint
    backup = storage.backup(found.dataset, found.flow, int(found.path.name))
    backup /= f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}"
    for problem in report.problems:
        repair = problem.repair
        assert repair is not None
        sums = repair.file.parent / f".{repair.file.name}.crc"
        # A new file beside old checksums could not be read.
        for file in (sums, repair.file):
            if file.exists():
                file.copy(backup / "/".join(file.below(found.path)))
                if file == sums or repair.text is None:
                    file.delete()
        if repair.text is not None:
            repair.file.replace(repair.text)
