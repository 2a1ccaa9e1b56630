"""What object storage and Kafka's logins add to a Spark session: jars, settings and credentials."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from headrace.runtime.fetch import ensure_jars
from headrace.runtime.jars import JarSet, locked_jars
from headrace.runtime.lazy_pyspark import SparkSession


@dataclass(frozen=True)
class StorageSupport:
    """The parts of a session that its start needs. None of them holds a secret."""

    jar_sets: tuple[JarSet, ...] = ()
    own_jars: tuple[Path, ...] = ()  # jars of the wheel
    settings: Mapping[str, str] = field(default_factory=dict)
    required: tuple[str, ...] = ()  # the settings without which a session of the user would write unsafely
    marker: str = ""  # a class of the jars
    share: Callable[[SparkSession, bool], Callable[[], None]] = field(
        default=lambda spark, owned: lambda: None, compare=False
    )
    """Gives a session the credentials; the result ends their renewal. The second argument says whether
    Headrace has started the session."""

    passing: Callable[[], Collection[str]] = field(default=tuple, compare=False)
    """Returns secrets that each command has anew. They are no part of an engine's key."""

    def with_jar_sets(self, names: Collection[JarSet]) -> StorageSupport:
        return replace(self, jar_sets=(*self.jar_sets, *names)) if names else self

    def ensure_jars(self) -> tuple[Path, ...]:
        """Returns the paths of the jars; downloads missing ones."""
        fetched = ensure_jars(*self.jar_sets) if self.jar_sets else ()
        return (*fetched, *self.own_jars)

    @property
    def identity(self) -> list[str]:
        """The same for JVMs with the same jars."""
        coordinates = [str(jar.coordinate) for jar in locked_jars(*self.jar_sets)] if self.jar_sets else []
        return [*coordinates, *map(str, self.own_jars)]


CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"
"""The setting that fences streams on object storage."""

NO_STORAGE = StorageSupport()
"""The local disk."""
