"""A pipeline's settings, from its spec, profile and environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from headrace.errors import SourceLocation
from headrace.model.connections import KafkaConnection
from headrace.model.expectations import NullRule
from headrace.model.rejection_limit import RejectionLimit
from headrace.model.secrets import Redactor
from headrace.model.triggers import Trigger

if TYPE_CHECKING:
    from headrace.storage.layout import Storage

OnDataLoss = Literal["refuse", "record"]


@dataclass(frozen=True, kw_only=True)
class ProjectSettings:
    """The settings of ``headrace.yml``, resolved for one profile.

    Args:
        name: The pipeline's name.
        file: The spec file; relative paths in it are relative to its folder.
        profile: The chosen profile.
        storage: The storage of tables, checkpoints, ledger and events.
        catalog: The name of a Spark catalog; ``None`` uses that of the session.
        database: The schema of datasets whose names have one part.
        libraries: Globs of the pipeline's files, relative to the spec's folder.
        configuration: Spark settings of the pipeline (``spark.*``) and values of the user's own.
        configuration_locations: The lines of these settings in the spec.
        kafka: The default Kafka connection.
        trigger: When batches start, for flows without a trigger.
        view_interval_s: Minimum seconds between two refreshes of a materialized view.
        on_data_loss: What happens if a source has lost records that were not read yet.
        master: The Spark master; ``None`` runs locally on all cores, or uses that of the session.
        memory: The heap size of the JVM; ``None`` chooses it by the memory of the machine.
        expectation_nulls: Whether a row passes an expectation whose condition is NULL, for expectations
            without a rule of their own.
        max_rejected: The limit of rejected records of a batch, for tables without one of their own.
        consumer_groups: Whether flows publish their offsets to the broker.
        redactor: Replaces the secrets among these settings.
    """

    name: str
    file: Path
    profile: str
    storage: Storage
    libraries: tuple[str, ...]
    database: str = "default"
    catalog: str | None = None
    configuration: Mapping[str, str] = field(default_factory=dict, repr=False)
    configuration_locations: Mapping[str, SourceLocation] = field(default_factory=dict, repr=False)
    kafka: KafkaConnection = field(default_factory=KafkaConnection)
    trigger: Trigger = field(default_factory=Trigger)
    view_interval_s: float = 10.0
    on_data_loss: OnDataLoss = "refuse"
    expectation_nulls: NullRule = "pass"
    max_rejected: RejectionLimit | None = None
    master: str | None = None
    memory: str | None = None
    consumer_groups: bool = True
    redactor: Redactor = field(default_factory=Redactor, repr=False, compare=False)

    @property
    def root(self) -> Path:
        return self.file.parent

    @property
    def own_values(self) -> dict[str, str]:
        """The part of `configuration` that is not Spark's; queries read it with ``spark.conf.get``."""
        return {key: value for key, value in self.configuration.items() if not key.startswith("spark.")}
