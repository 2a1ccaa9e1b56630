"""What a pipeline's files have declared so far, and the pipeline that is active while its code runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace.errors import DuplicateNameError, NoActivePipelineError, SourceLocation
from headrace.model.declarations import Dataset, Declarations, Flow
from headrace.model.folders import FileFolder
from headrace.model.project import ProjectSettings
from headrace.state.kept_schemas import SchemaKey

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Registry:
    """Collects declarations while a pipeline's files run.

    Args:
        default_schema: Left out of names in errors, as users leave it out.

    Example:
        >>> registry = Registry()
        >>> registry.declarations()
        Declarations(datasets=(), flows=())
    """

    def __init__(self, default_schema: str = "default") -> None:
        self._default_schema = default_schema
        self._datasets: dict[str, Dataset] = {}
        self._flows: dict[str, Flow] = {}

    def add_dataset(self, dataset: Dataset) -> None:
        """Add a dataset whose name must be new."""
        # Tables are folders, and Spark ignores case: two names that differ in case alone would
        # share one folder on some machines.
        key = str(dataset.name).casefold()
        if earlier := self._datasets.get(key):
            shown = str(dataset.name).removeprefix(f"{self._default_schema}.")
            raise _duplicate("dataset", shown, earlier.location, dataset.location)
        self._datasets[key] = dataset

    def add_flow(self, flow: Flow) -> None:
        """Add a flow whose name must be new in the whole pipeline."""
        key = flow.name.casefold()
        if earlier := self._flows.get(key):
            raise _duplicate("flow", flow.name, earlier.location, flow.location)
        self._flows[key] = flow

    def declarations(self) -> Declarations:
        """Everything so far, in the order of its declaration."""
        return Declarations(tuple(self._datasets.values()), tuple(self._flows.values()))


def _duplicate(kind: str, name: str, first: SourceLocation, second: SourceLocation) -> DuplicateNameError:
    return DuplicateNameError(
        f"the {kind} `{name}` is declared twice",
        location=second,
        facts=[f"first declared at {first}"],
        remedies=[f"give one of the two another name, with name=.. (the other is at {first})"],
        params={"kind": kind, "name": name, "first": str(first), "second": str(second)},
    )


FolderHook = Callable[[FileFolder, str, Any, Mapping[str, str], SourceLocation], FileFolder]
"""Given a folder, the format and the schema of its files, the reader's options, and the user's line."""


@dataclass(frozen=True)
class ActivePipeline:
    """The pipeline whose files or queries run now.

    Args:
        settings: Its settings.
        session: Gives the Spark session; starts one at the first call.
        registry: Where decorators register; ``None`` once the files have been loaded.
        schema_files: The files that schemas were read from, by the hash of what they hold.
        inferred: The schemas that reads have inferred, for a run to keep.
        folders: Gives the folder that is read in place of one of files; ``None`` reads what is named.
    """

    settings: ProjectSettings
    session: Callable[[], SparkSession]
    registry: Registry | None = None
    schema_files: dict[str, str] = field(default_factory=dict)
    inferred: list[tuple[SchemaKey, Mapping[str, Any]]] = field(default_factory=list)
    folders: FolderHook | None = None

    def with_session(self, session: SparkSession) -> ActivePipeline:
        """The same pipeline on another session, such as a flow's own clone."""
        return replace(self, session=lambda: session)


_active: ContextVar[ActivePipeline | None] = ContextVar("headrace_active_pipeline", default=None)


def current_pipeline() -> ActivePipeline | None:
    """The active pipeline of this thread, if there is one."""
    return _active.get()


def require_pipeline(what: str) -> ActivePipeline:
    """The active pipeline, or an error that says that ``what`` needs one."""
    active = _active.get()
    if active is None:
        raise NoActivePipelineError(
            f"{what} was used outside of a pipeline",
            remedies=[
                "headrace plan        runs the pipeline's files with everything in place",
                "use it inside a query function, or pass the function a session of your own in a test",
            ],
            params={"what": what},
        )
    return active


@contextmanager
def activate(active: ActivePipeline) -> Iterator[ActivePipeline]:
    """Make a pipeline the active one of this thread, with its folder on the import path.

    Whoever calls a query function enters this first: the function may ask for ``spark``, read a
    topic, or import a module that lies beside the spec.
    """
    token = _active.set(active)
    root = str(active.settings.root)
    # Entries are counted by repetition: flows on other threads enter and leave on their own.
    sys.path.insert(0, root)
    try:
        yield active
    finally:
        with suppress(ValueError):  # user code may have taken it away
            sys.path.remove(root)
        _active.reset(token)
