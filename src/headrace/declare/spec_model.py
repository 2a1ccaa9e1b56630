"""What ``headrace.yml`` may hold, as a model that judges values from outside."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from headrace.declare import alerts_spec, aws_spec, kafka_spec
from headrace.declare.alerts_spec import AlertsSpec
from headrace.declare.aws_spec import KinesisSpec, ObjectStorageSpec
from headrace.declare.kafka_spec import KafkaSpec
from headrace.declare.spec_types import MEMORY, Flag, Part, Seconds, Settings, Text, matching, parse_memory
from headrace.model.declarations import RejectionLimit, Trigger
from headrace.model.kafka_settings import KAFKA_SETTINGS
from headrace.model.maintenance import parse_bytes
from headrace.model.names import DuplicateKeys
from headrace.model.project import LineageSettings
from headrace.model.texts import parse_duration

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_SERVER = re.compile(r"https?://[^@\s]+")
_SCHEMA = re.compile(r"[A-Za-z0-9_]{1,200}")


class Include(Part):
    include: Text


class Library(Part):
    glob: Include | None = None
    file: Text | None = None

    @model_validator(mode="after")
    def _one(self) -> Library:
        if (self.glob is None) == (self.file is None):
            raise ValueError("must hold either `glob: {include: ..}` or `file: ..`")
        return self

    @property
    def pattern(self) -> str:
        return self.glob.include if self.glob else str(self.file)


class Interval(Part):
    """``trigger``, which may also be written as one word or one time."""

    interval: Seconds = 0.0
    """the minimum time between the starts of two batches of a flow: ``500 ms``, ``10 seconds``"""

    available_now: Flag = False
    """whether flows process what the sources hold now, and end"""

    @property
    def trigger(self) -> Trigger:
        return Trigger(interval_s=self.interval, available_now=self.available_now)


def _interval(value: Any) -> Any:
    if isinstance(value, dict) or value is None:
        return value
    trigger = Trigger.parse(value)
    return {"interval": trigger.interval_s, "available_now": trigger.available_now}


class Views(Part):
    interval: Seconds = 10.0
    """the minimum time between two refreshes of a materialized view: ``10``, ``1 minute``"""


class Ui(Part):
    rows: Flag = True
    """whether `headrace ui` may show rows, rejected rows and records, when somebody asks for them"""


class MetricsSpec(Part):
    token: Text | None = None
    """the bearer token that a scraper of ``headrace run --metrics`` and of ``headrace ui`` sends, such as
    ``${METRICS_TOKEN}``"""


class LineageSpec(Part):
    url: Annotated[Text, matching(_SERVER, "must be a URL, such as https://marquez.example.com")] | None = (
        None
    )
    """the URL of a server that takes OpenLineage's events, with the path if it is not ``/api/v1/lineage``"""

    api_key: Text | None = None
    """the key for the server, such as ``${LINEAGE_KEY}``"""

    file: Text | None = None
    """a file to which the events are appended, in place of a server, relative to the folder of the spec"""

    namespace: Text = "headrace"
    """the namespace of the jobs; by default ``headrace``"""

    interval: Seconds = 60.0
    """the time between two events of a flow that runs; by default ``1 minute``"""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.url is not None and self.file is not None:
            raise ValueError("must have `url` or `file`, and not both")
        if self.url is None and self.api_key is not None:
            raise ValueError("has an `api_key`, which only a `url` needs")
        return self

    @property
    def settings(self) -> LineageSettings | None:
        if self.url is None and self.file is None:
            return None
        return LineageSettings(
            url=self.url,
            api_key=self.api_key,
            file=None if self.file is None else Path(self.file),
            namespace=self.namespace,
            interval_s=self.interval,
        )


class Expectations(Part):
    nulls: Literal["pass", "fail"] = "pass"
    """whether a row passes an expectation whose condition is NULL: ``pass`` or ``fail``"""


class Compatibility(Part):
    ansi: Flag = True
    """whether Spark's ANSI mode is on; with ``false``, a text that cannot be cast, a division by zero or an
    overflow gives NULL instead of an error"""


class Runtime(Part):
    master: Text | None = None
    """the Spark master; by default local, with all cores of the machine"""

    memory: Annotated[Text, matching(MEMORY, "must be a JVM memory size, such as 2g or 512m")] | None = None
    """the heap size of the JVM, such as ``2g``; by default chosen by the memory of the machine"""

    broker: Text | None = None
    """the folder of the embedded broker, relative to the folder of the spec; by default
    ``.headrace/broker``; the environment variable ``HEADRACE_BROKER_DIR`` replaces it"""


class Upsert(Part):
    index_memory: Annotated[int, BeforeValidator(parse_memory)] | None = None
    """the memory that the key indexes of all tables share, such as ``512m`` or ``2g``;
    by default a quarter of the machine's memory; ``0m`` disables the indexes"""

    duplicate_keys: DuplicateKeys = "fail"
    """what a flow does if another writer has added a second row of a key: ``fail`` stops the flow at the next
    record of the key; with ``replace``, a newer record replaces all rows of its key (SCD type 1)"""


def _whole(value: Any) -> Any:
    # A value that came through an environment variable is text.
    return int(value) if isinstance(value, str) and value.isdigit() else value


Count = Annotated[int, Field(gt=0, strict=True), BeforeValidator(_whole)]
Duration = Annotated[float, BeforeValidator(parse_duration)]


class Executors(Part):
    min: Count = 1
    """the number of executors that a continuous run keeps"""

    max: Count
    """the highest number of executors that a continuous run asks for"""

    backlog: Duration = 30.0
    """the run asks for executors if a flow needs longer than this time for its backlog; by default
    ``30 seconds``"""

    idle: Duration = 60.0
    """the run gives executors back if fewer have been enough for this time; by default ``1 minute``"""

    @model_validator(mode="after")
    def _ordered(self) -> Executors:
        if self.min > self.max:
            raise ValueError(f"has min {self.min}, which is above max {self.max}")
        return self


class ClusterSpec(Part):
    """Runs on a cluster; a local master ignores it."""

    packages: list[Text] = Field(default_factory=list)
    """Python packages of this environment that are sent to the executors, with the packages that they need,
    such as ``[pandas, pyarrow]``"""

    executors: Executors | None = None
    """the executors of a continuous run, by its backlog, such as ``{min: 1, max: 8}``; by default, the
    settings of Spark decide"""


Size = Annotated[int, BeforeValidator(parse_bytes)]


_IN_SECONDS = {name: f"{name}_s" for name in ("retention", "log_retention", "reader_lag", "vacuum_every")}


class TableCareSpec(Part):
    compact: Flag | None = None
    """whether small files are compacted; by default ``true``"""

    auto: Flag | None = None
    """whether runs compact tables; by default ``true``; with ``false``, only ``headrace maintain`` compacts
    tables"""

    small_files: Count | None = None
    """a table is compacted if this removes at least this number of files; by default ``32``"""

    commits: Count | None = None
    """a table is also compacted after this number of commits with rows; by default, only the number of files
    decides"""

    target_file_size: Size | None = None
    """the size of compacted files, such as ``128m``; by default 128 MiB, 256 MiB for tables of at least 10
    GiB, and 1 GiB for tables of at least 1 TiB; a file is small if it has less than a quarter of this size"""

    z_order: list[Text] | None = None
    """columns by which ``headrace maintain`` orders the rows when it compacts a table; it then rewrites all
    files"""

    vacuum: Flag | None = None
    """whether ``headrace maintain`` and continuous runs delete old files; by default ``true``"""

    vacuum_every: Duration | None = None
    """the time between two vacuums of a table in a continuous run; by default ``1 day``"""

    retention: Duration | None = None
    """how long files are kept after they were removed from a table; by default ``7 days``"""

    allow_short_retention: Flag | None = None
    """whether ``retention`` may be below 7 days; by default ``false``"""

    log_retention: Duration | None = None
    """how long the commits of a table's log are kept; by default ``30 days``"""

    reader_lag: Duration | None = None
    """a vacuum keeps the files that a flow has not read yet; if the flow has not read a table's commits for
    longer than this time, the vacuum fails instead; by default ``30 days``"""

    @property
    def values(self) -> dict[str, Any]:
        """The given values, by the names of `headrace.model.maintenance.TablePolicy`."""
        given = {name: getattr(self, name) for name in TableCareSpec.model_fields}
        found = {_IN_SECONDS.get(name, name): value for name, value in given.items() if value is not None}
        return {**found, "z_order": tuple(found["z_order"])} if "z_order" in found else found


class MaintenanceSpec(TableCareSpec):
    tables: dict[str, TableCareSpec] = Field(default_factory=dict)
    """the same keys for individual tables, by the names of the tables"""


class Overridable(Part):
    """The keys of the spec and of each of its profiles."""

    storage: Text | None = None
    """the folder of tables, checkpoints, ledger and events: relative to the folder of the spec, or
    ``s3://BUCKET/PREFIX``; by default ``./lake``"""

    kinesis: KinesisSpec = Field(default_factory=KinesisSpec)
    """how streams of Kinesis are reached, where `read_kinesis` says nothing else"""

    object_storage: ObjectStorageSpec = Field(default_factory=ObjectStorageSpec)
    """how object storage is reached"""

    catalog: Text | None = None
    """the catalog of the pipeline: names that begin with this catalog are names of this pipeline"""

    database: Annotated[Text, matching(_SCHEMA, "may have letters a-z, digits and _ only")] | None = None
    """the schema of datasets whose names have one part; by default ``default``"""

    libraries: Annotated[list[Library], Field(min_length=1)] | None = None
    """the pipeline's files, each entry ``{glob: {include: transformations/**}}`` or ``{file: one.py}``; by
    default ``transformations/**``"""

    configuration: Settings = Field(default_factory=dict)
    """Spark settings (``spark.*``), and your own values for ``spark.conf.get``"""

    secrets: Settings = Field(default_factory=dict)
    """secrets for ``dbutils.secrets.get(scope, key)``, each written as ``scope/key: ${VARIABLE}``"""

    tables: Settings = Field(default_factory=dict)
    """maps names of tables in other systems (``a.b.c``, ``a.b.*`` or ``a.*``) to the path of a Delta table,
    of a folder of tables, or of another pipeline's storage, or to a Spark catalog"""

    paths: Settings = Field(default_factory=dict)
    """maps the beginning of paths in other systems, such as ``dbfs:/`` or ``/Volumes/main``, to the location
    that replaces it"""

    trigger: Annotated[Interval, BeforeValidator(_interval)] = Field(default_factory=Interval)
    """when batches start; short forms: ``trigger: 30 seconds``, ``trigger: available_now``"""

    views: Views = Field(default_factory=Views)
    """how often views are refreshed"""

    kafka: KafkaSpec = Field(default_factory=KafkaSpec)
    """settings of the Kafka client, with Kafka's names; with ``bootstrap.servers: embedded``, the default of
    the profile ``dev``, Headrace starts a broker"""

    on_data_loss: Literal["refuse", "record"] = "refuse"
    """what happens if a source has lost records that were not read yet: ``refuse`` stops the flow, ``record``
    records the loss in the ledger and continues"""

    expectations: Expectations = Field(default_factory=Expectations)
    """how expectations are checked"""

    max_rejected: Annotated[RejectionLimit, BeforeValidator(RejectionLimit.parse)] | None = None
    """the maximum share or number of rejected records in a batch (``5%``, ``100``), or in several batches
    together (``5% of 20 batches``); a flow stops at the first batch above the limit; no limit by default"""

    max_value_bytes: Annotated[int, Field(gt=0, strict=True)] | None = None
    """the maximum size of a record's value; a record with a longer value is a bad record; a reader can set
    its own limit; by default 8 MiB"""

    compatibility: Compatibility = Field(default_factory=Compatibility)
    """rules of other platforms"""

    upsert: Upsert = Field(default_factory=Upsert)
    """how changes by key are applied"""

    maintenance: MaintenanceSpec = Field(default_factory=MaintenanceSpec)
    """when tables are compacted, and how long old files and commits are kept"""

    readers: list[Literal["delta-rs", "duckdb", "polars"]] = Field(default_factory=list)
    """engines other than Spark that read the tables: ``delta-rs``, ``duckdb``, ``polars``; `headrace plan`
    warns if a table has a feature that one of these engines cannot read"""

    consumer_groups: Flag = True
    """whether flows publish their offsets to the broker, for Kafka's tools"""

    ui: Ui = Field(default_factory=Ui)
    """what the [dashboard](ui.md) shows"""

    alerts: AlertsSpec = Field(default_factory=AlertsSpec)
    """who is told when [something is wrong](alerts.md)"""

    metrics: MetricsSpec = Field(default_factory=MetricsSpec)
    """who gets [metrics](metrics.md)"""

    lineage: LineageSpec = Field(default_factory=LineageSpec)
    """where runs send events in the form of [OpenLineage](lineage.md#openlineage); by default,
    none are sent"""

    runtime: Runtime = Field(default_factory=Runtime)
    """where Spark and the embedded broker run"""

    cluster: ClusterSpec = Field(default_factory=ClusterSpec)
    """the Python packages and the number of executors, if the master is a cluster"""


class Spec(Overridable):
    """The spec, merged with one profile."""

    name: Annotated[Text, matching(_NAME, "may have letters a-z, digits, _ - and . only")]
    """the pipeline's name: letters, digits, ``_`` ``-`` ``.``"""

    bundle: Text | None = None
    """a Databricks asset bundle (``databricks.yml``); it supplies the name, catalog, schema, libraries and
    configuration that the spec does not set; the profile is the target of the bundle"""

    pipeline: Text | None = None
    """the key of the pipeline in the bundle, if the bundle has several pipelines"""

    root_path: Text | None = None
    """an additional folder from which files can import modules"""


SETTINGS = ("configuration", "secrets", "kafka", "tables", "paths")
"""Mappings with keys of users and other systems: they have one level, and every value is text."""

BROKERS = "brokers"
"""The key under `kafka` that maps addresses in files to connections."""

CONNECTION = "connection"
"""The key under `kafka` that has the login of a service."""


SCHEMA_FILE = "headrace.schema.json"
"""The name under which `headrace init` writes it beside the spec."""

_PLAIN = ["string", "number", "boolean"]


def build_schema() -> dict[str, Any]:
    describe_fields()
    profile = Overridable.model_json_schema()
    parts = profile.pop("$defs")
    settings = profile["properties"]
    trigger = [{"$ref": "#/$defs/Interval"}, {"type": ["string", "number"]}]
    settings["trigger"] = {"description": settings["trigger"]["description"], "anyOf": trigger}
    for one in (parts["KafkaSpec"], settings["configuration"]):
        one["additionalProperties"] = {"type": _PLAIN}
    parts["KafkaSpec"]["properties"] |= {key: {"type": _PLAIN} for key in sorted(KAFKA_SETTINGS)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "headrace.yml",
        "type": "object",
        "required": ["name"],
        "additionalProperties": False,
        "properties": {
            "name": _relaxed(Spec.model_json_schema()["properties"]["name"]),
            **{key: {"$ref": f"#/$defs/Profile/properties/{key}"} for key in settings},
            "profiles": {
                "description": "values that replace those of the spec, by the name of the profile",
                "type": "object",
                "additionalProperties": {"anyOf": [{"$ref": "#/$defs/Profile"}, {"type": "null"}]},
            },
        },
        "$defs": _relaxed({**parts, "Profile": profile}),
    }


@cache
def describe_fields() -> None:
    """Sets the docstring below each field of the spec's models as the description of the field."""
    texts: dict[type[BaseModel], dict[str, str]] = {}
    for module in (alerts_spec, aws_spec, kafka_spec, sys.modules[__name__]):
        for node in ast.parse(inspect.getsource(module)).body:
            if not isinstance(node, ast.ClassDef):
                continue
            model = getattr(module, node.name)
            texts[model] = dict(_texts(node))
            for parent in model.__mro__:
                for name, text in texts.get(parent, {}).items():
                    model.model_fields[name].description = text
            model.model_rebuild(force=True)


def _texts(model: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """The name of each field that has a docstring below it, with this docstring."""
    for field, below in pairwise(model.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str() as text)):
                yield name, inspect.cleandoc(text)


def _relaxed(schema: Any) -> Any:
    """The schema with `${NAME}` allowed for numbers and flags, and without what editors do not show."""
    if isinstance(schema, list):
        return [_relaxed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: _relaxed(value) for key, value in schema.items() if key not in ("title", "default")}
    if isinstance(kept.get("description"), str):
        kept["description"] = re.sub(r"``([^`]+)``", r"`\1`", " ".join(kept["description"].split()))
    if kept.get("type") in ("number", "boolean"):
        kept["type"] = [kept["type"], "string"]
    if "enum" in kept:
        values = {key: kept.pop(key) for key in ("enum", "type")}
        kept["anyOf"] = [values, {"type": "string", "pattern": r"^\$\{"}]
    return kept
