"""The checkpoints of a pipeline's flows, read without Spark."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import FlowUnknownError, did_you_mean
from headrace.maintain.checkpoints import FlowCheckpoint, load_checkpoints
from headrace.model.project import ProjectSettings


class Checkpoints:
    def __init__(self, settings: ProjectSettings) -> None:
        self._settings = settings

    def show(self, flows: Sequence[str] = ()) -> tuple[FlowCheckpoint, ...]:
        """The newest checkpoint of each flow."""
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
