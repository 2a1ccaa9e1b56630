"""A pipeline's settings, from its spec, profile and environment, with its broker and buckets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Literal

from headrace.errors import SourceLocation
from headrace.model.alerts import AlertSettings
from headrace.model.declarations import NullRule, RejectionLimit, Trigger
from headrace.model.kafka_settings import KafkaConnection
from headrace.model.maintenance import MaintenanceSettings
from headrace.model.names import DuplicateKeys, TableName
from headrace.model.secrets import Redactor

if TYPE_CHECKING:
    from headrace.storage.layout import Storage
    from headrace.storage.location import Location


FOREIGN_PATH = re.compile(r"(?:dbfs:|abfss?:|wasbs?:|adl:|gs:|s3[an]?:|/dbfs/|/mnt/|/Volumes/|/Workspace/)")
"""The start of paths that another system has: such a path needs an entry under `paths`."""

ENTRY_MISSING = "if another system has it, name its path in "
"""The start of a remedy for a name or a path that has no entry."""

_URI = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")


@dataclass(frozen=True)
class MappedPath:
    path: str
    rule: str


@dataclass(frozen=True)
class PathMap:
    """The entries of `paths`: prefixes of paths, and the locations that replace them."""

    # The location of each prefix; an absolute path, or a URI.
    targets: Mapping[str, str] = field(default_factory=dict)

    def find(self, path: str) -> MappedPath | None:
        """The entry of a path, the one with the longest prefix; ``None`` if there is none. A path below a
        target is never mapped again."""
        path = re.sub(r"^([a-zA-Z0-9]+):///", r"\1:/", path)
        if not self.targets or any(_below(path, target) is not None for target in self.targets.values()):
            return None
        for prefix in sorted(self.targets, key=len, reverse=True):
            rest = _below(path, prefix)
            if rest is not None:
                target = self.targets[prefix]
                return MappedPath(f"{target.rstrip('/')}/{rest}" if rest else target, prefix)
        return None

    def map(self, path: str) -> str:
        """The path that replaces this one; the same path if no entry has it."""
        found = self.find(path)
        return path if found is None else found.path


def _below(path: str, prefix: str) -> str | None:
    bare = prefix.rstrip("/")
    if not path.startswith(bare):
        return None
    rest = path[len(bare) :]
    return rest.lstrip("/") if not rest or rest.startswith("/") or bare.endswith(":") else None


@dataclass(frozen=True)
class MappedTable:
    rule: str
    path: str | None = None  # the path of a Delta table; ``None`` if the entry names a catalog
    parts: tuple[str, ...] = ()  # the name in one of Spark's catalogs


@dataclass(frozen=True)
class TableMap:
    """The entries of `tables`: names of tables, schemas (`a.b.*`) and catalogs (`a.*`) of other systems."""

    # The target of each pattern: an absolute path, a URI, or the name of a catalog.
    targets: Mapping[str, str] = field(default_factory=dict)

    def find(self, parts: tuple[str, ...]) -> MappedTable | None:
        """The entry of a name, the longest one; ``None`` if there is none. The case of names is ignored."""
        for pattern in sorted(self.targets, key=len, reverse=True):
            rest = _rest(parts, pattern)
            if rest is not None:
                return self._mapped(pattern, parts, rest)
        return None

    def _mapped(self, pattern: str, parts: tuple[str, ...], rest: tuple[str, ...]) -> MappedTable:
        target = self.targets[pattern]
        named = tuple(target.split("."))
        if is_name(target):
            return MappedTable(pattern, parts=(*named, *parts[len(parts) - 3 + len(named) :]))
        if not rest:
            return MappedTable(pattern, target)
        if _URI.match(target):
            return MappedTable(pattern, "/".join((target.rstrip("/"), *rest)))
        if (Path(target) / "tables").is_dir():
            # The storage of another pipeline has its tables by schema.
            rest = ("tables", *parts[-2:])
        path = target.rstrip("/")
        for part in rest:
            path = f"{path}/{_in_case_of_folder(Path(path), part)}"
        return MappedTable(pattern, path)


def _in_case_of_folder(folder: Path, name: str) -> str:
    """A name as a subfolder has it, if only one has it in other letter case."""
    if not folder.is_dir() or (folder / name).exists():
        return name
    found = [one.name for one in folder.iterdir() if one.name.casefold() == name.casefold()]
    return found[0] if len(found) == 1 else name


def is_name(target: str) -> bool:
    """Whether the target of a table is the name of a catalog, and not a path."""
    return re.fullmatch(r"\w+(\.\w+){0,2}", target) is not None


def _rest(parts: tuple[str, ...], pattern: str) -> tuple[str, ...] | None:
    """The parts of a name that match the ``*`` of a pattern; ``None`` if the name does not match."""
    wanted = tuple(part.strip("`").casefold() for part in pattern.split("."))
    given = tuple(part.casefold() for part in parts)
    if wanted[-1] != "*":
        return () if given == wanted else None
    fixed = len(wanted) - 1
    return parts[fixed:] if len(parts) > fixed and given[:fixed] == wanted[:-1] else None


def absolute_target(text: str, folder: Path) -> str:
    """The target of an entry as an absolute path, or the URI; relative paths start at the spec's folder."""
    if _URI.match(text):
        return text.removeprefix("file://") if text.startswith("file:///") else text
    return os.path.normpath(folder.absolute() / Path(text).expanduser())


Reason = Literal["pipeline", "spec", "variable", "outside"]


@dataclass(frozen=True)
class BrokerChoice:
    """The folder of an embedded broker.

    `reason`: why it is this folder. It is the folder of the pipeline, the one that the spec or the
    environment variable names, or without a pipeline the shared one.
    """

    folder: Path
    reason: Reason
    pipeline: str | None = None

    def describe(self) -> str:
        match self.reason:
            case "pipeline" | "spec":
                return f"the broker of pipeline {self.pipeline}"
            case "variable":
                return "the broker of HEADRACE_BROKER_DIR"
            case "outside":
                return "the shared broker (no pipeline is in this folder)"


@dataclass(frozen=True)
class MappedBrokers:
    """Addresses that an entry of `kafka.brokers` maps."""

    rule: str
    name: str  # the connection in the spec
    connection: KafkaConnection | None  # ``None`` for the connection of the chosen profile


class AmbiguousBrokersError(ValueError):
    """Two entries map addresses of one list to different connections."""


@dataclass(frozen=True)
class BrokerMap:
    """The entries of `kafka.brokers`: patterns of addresses, each with a connection."""

    # The name of the connection of each pattern, as the spec writes it.
    targets: Mapping[str, str] = field(default_factory=dict)
    # The connections by name; ``None`` is the connection of the chosen profile.
    connections: Mapping[str, KafkaConnection | None] = field(default_factory=dict, repr=False)

    @property
    def named(self) -> tuple[KafkaConnection, ...]:
        """The connections that are not that of the chosen profile."""
        return tuple(one for one in self.connections.values() if one is not None)

    def find(self, servers: str) -> MappedBrokers | None:
        """The entry for a list such as ``a:9092,b:9092``, of which one address has to match; ``None`` if none
        does. Raises `AmbiguousBrokersError` if two addresses have different connections."""
        found: dict[str, str] = {}
        for address in split_addresses(servers):
            if (pattern := self._pattern(address)) is not None:
                found.setdefault(self.targets[pattern], pattern)
        if len(found) > 1:
            (one, first), (two, second) = list(found.items())[:2]
            raise AmbiguousBrokersError(
                f"kafka.brokers maps the addresses to two connections: `{first}` to {one}, "
                f"and `{second}` to {two}"
            )
        for name, pattern in found.items():
            return MappedBrokers(pattern, name, self.connections[name])
        return None

    def _pattern(self, address: str) -> str | None:
        found = {
            key: max((len(one) for one in split_addresses(key) if _matches(address, one)), default=0)
            for key in self.targets
        }
        best = max(found, key=found.__getitem__, default=None)
        return best if best is not None and found[best] else None


def split_addresses(text: str) -> Iterator[str]:
    """The addresses, or the patterns, of a list with commas, in lower case."""
    return (one.strip().lower() for one in text.split(",") if one.strip())


def _matches(address: str, pattern: str) -> bool:
    if ":" not in pattern:
        # A pattern without a port is for all ports.
        address = address.rpartition(":")[0]
    return fnmatchcase(address, pattern)


ENDPOINT = re.compile(r"https?://[^/@\s]+/?")
"""The URL of a store. Keys have settings of their own, since messages show the endpoint."""


@dataclass(frozen=True, kw_only=True)
class AwsSettings:
    """How a service of AWS is reached. Where a field has no value, AWS's own settings decide."""

    endpoint: str | None = None  # the URL of a compatible server; ``None`` is AWS
    region: str | None = None
    profile: str | None = None  # a profile of AWS's files of settings and credentials
    role_arn: str | None = None  # a role to assume with the credentials that were found
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class S3Settings(AwsSettings):
    path_style: bool | None = None  # whether the bucket is in the path of a URL and not in its host


@dataclass(frozen=True, kw_only=True)
class S3Reach:
    bucket: str
    region: str
    endpoint: str | None  # the URL of the store without the bucket; ``None`` is AWS
    path_style: bool
    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(repr=False)

    @property
    def allows_http(self) -> bool:
        return self.endpoint is not None and self.endpoint.startswith("http:")

    @property
    def bucket_endpoint(self) -> str | None:
        """The URL with the bucket in its host, unless it is in the path."""
        if self.endpoint is None or self.path_style:
            return self.endpoint
        scheme, _, host = self.endpoint.partition("://")
        return f"{scheme}://{self.bucket}.{host}"

    @property
    def table_options(self) -> dict[str, str]:
        """The options of `deltalake`. Commits create their files conditionally. Each option has
        a value here: for others, `deltalake` would take the value of an environment variable."""
        given = {
            "aws_access_key_id": self.access_key_id,
            "aws_secret_access_key": self.secret_access_key,
            "aws_session_token": self.session_token,
            "aws_region": self.region,
            # AWS_ENDPOINT_URL_S3 of the environment comes before `aws_endpoint`.
            "aws_endpoint_url_s3": self.bucket_endpoint,
            "aws_virtual_hosted_style_request": str(not self.path_style).lower(),
            "aws_allow_http": str(self.allows_http).lower(),
            "aws_conditional_put": "etag",
            "aws_s3_allow_unsafe_rename": "false",
            "aws_skip_signature": "false",
        }
        return {name: value for name, value in given.items() if value is not None}


def code_language(file: PurePath) -> Literal["python", "sql", "notebook"] | None:
    """The language of a file by the end of its name, in any letter case; ``None`` for other files."""
    match file.suffix.lower():
        case ".py":
            return "python"
        case ".sql":
            return "sql"
        case ".ipynb":
            return "notebook"
        case _:
            return None


ANSI_SETTING = "spark.sql.ansi.enabled"
"""The setting that lets Spark raise an error where its older mode gives NULL."""
LogFormat = Literal["text", "json"]
PREVIEW_RECORDS = 5_000  # the number of newest records that a preview reads of each Kafka source
LogLevel = Literal["debug", "info", "warning", "error"]


OnDataLoss = Literal["refuse", "record"]


@dataclass(frozen=True, kw_only=True)
class ExecutorLimits:
    """How many executors a continuous run may have, and when it asks for more or gives some back."""

    least: int
    most: int
    backlog_s: float  # the time in which the flows should process what their sources hold
    idle_s: float  # how long there must have been too many executors before some are given back


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    packages: tuple[str, ...] = ()  # Python packages of this environment that executors get
    executors: ExecutorLimits | None = None
    location: SourceLocation | None = field(default=None, compare=False)


@dataclass(frozen=True, kw_only=True)
class LineageSettings:
    """Where runs send their events in the form of OpenLineage: to a server, or to a file."""

    url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    file: Path | None = None
    namespace: str = "headrace"
    interval_s: float = 60.0  # the time between two events of a flow that runs


@dataclass(frozen=True, kw_only=True)
class ProjectSettings:
    """The settings of ``headrace.yml``, resolved for one profile."""

    name: str
    file: Path  # the spec file; relative paths in it are relative to its folder
    # Where the spec sets its values, by their keys.
    places: Mapping[str, SourceLocation] = field(default_factory=dict, repr=False, compare=False)
    profile: str
    storage: Storage  # the storage of tables, checkpoints, ledger and events
    libraries: tuple[str, ...]  # globs of the pipeline's files, relative to the spec's folder
    database: str = "default"  # the schema of datasets whose names have one part
    catalog: str | None = None  # the name of a Spark catalog; ``None`` uses that of the session
    # Spark settings of the pipeline (`spark.*`) and values of the user's own.
    configuration: Mapping[str, str] = field(default_factory=dict, repr=False)
    configuration_locations: Mapping[str, SourceLocation] = field(default_factory=dict, repr=False)
    # The secrets of `dbutils.secrets`, by scope and key.
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    kafka: KafkaConnection = field(default_factory=KafkaConnection)
    # The embedded broker of the pipeline, also if this profile uses another cluster.
    broker: BrokerChoice | None = None
    # The addresses of brokers in files, with the connections that replace them.
    brokers: BrokerMap = field(default_factory=BrokerMap)
    trigger: Trigger = field(default_factory=Trigger)  # when batches start, for flows without a trigger
    view_interval_s: float = 10.0  # minimum seconds between two refreshes of a materialized view
    on_data_loss: OnDataLoss = "refuse"  # what happens if a source has lost records that were not read yet
    # Whether a row passes an expectation whose condition is NULL, for expectations without a rule of their
    # own.
    expectation_nulls: NullRule = "pass"
    # The limit of rejected records of a batch, for tables without one of their own.
    max_rejected: RejectionLimit | None = None
    # The longest value that readers decode, for readers without a limit of their own; `None` is 8 MiB.
    max_value_bytes: int | None = None
    # The memory of the key indexes of all tables, in bytes; `None` is a quarter of the machine's memory.
    index_memory: int | None = None
    # What a flow does with a record whose key has several rows in the table.
    duplicate_keys: DuplicateKeys = "fail"
    # The Spark master; `None` runs locally on all cores, or uses that of the session.
    master: str | None = None
    s3: S3Settings = field(default_factory=S3Settings)  # how buckets of S3 are reached
    kinesis: AwsSettings = field(default_factory=AwsSettings)  # how streams of Kinesis are reached
    memory: str | None = None  # the heap size of the JVM; ``None`` chooses it by the memory of the machine
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    maintenance: MaintenanceSettings = field(default_factory=MaintenanceSettings)
    readers: tuple[str, ...] = ()  # engines that read the tables besides Spark
    consumer_groups: bool = True  # whether flows publish their offsets to the broker
    alerts: AlertSettings = field(default_factory=AlertSettings)
    # What a scraper of metrics must send as its bearer token.
    metrics_token: str | None = field(default=None, repr=False)
    shows_rows: bool = True  # whether the dashboard may show values of rows
    lineage: LineageSettings | None = None  # where runs send OpenLineage's events; `None` sends none
    # The names of other systems' tables, with their paths or catalogs here.
    tables: TableMap = field(default_factory=TableMap)
    paths: PathMap = field(default_factory=PathMap)  # the paths of other systems, with their locations here
    root_path: Path | None = None  # A further folder from which files import modules
    # The folder in the storage that holds the pipeline's files, if `root` is a working copy of it.
    kept_in: Location | None = None
    # The folder where relative paths of data start, if it is not that of the spec.
    started_in: Path | None = None
    ignored: tuple[str, ...] = ()  # the settings of an asset bundle that have no meaning here
    # The packages that an asset bundle installs for the pipeline, as requirements of pip.
    packages: Mapping[str, SourceLocation] = field(default_factory=dict)
    # Replaces the secrets among these settings.
    redactor: Redactor = field(default_factory=Redactor, repr=False, compare=False)

    @property
    def root(self) -> Path:
        return self.file.parent

    @property
    def home(self) -> Location | Path:
        """The folder that all runs of the pipeline have in common, also where `root` is a working copy."""
        return self.kept_in or self.root

    @property
    def data_folder(self) -> Path:
        """The folder where relative paths of readers and sinks start."""
        return (self.started_in or self.root).absolute()

    @property
    def code_folders(self) -> tuple[Path, ...]:
        """The folders of the pipeline's code: its own, and those outside of it that `libraries` names."""
        found = [self.root]
        if self.root_path is not None and self.root_path.is_dir():
            found.append(self.root_path)
        for pattern in self.libraries:
            fixed = tuple(takewhile(lambda part: not set("*?[") & set(part), PurePath(pattern).parts))
            named = Path(os.path.normpath(self.root.joinpath(*fixed)))
            folder = named if code_language(named) is None else named.parent
            if folder.name == "transformations":
                # Databricks has modules beside this folder.
                folder = folder.parent
            if folder.is_dir() and not any(folder.is_relative_to(one) for one in found):
                found.append(folder)
        return tuple(found)

    @property
    def spec_to_edit(self) -> str:
        """The name of the file that takes entries of `tables` and `paths`."""
        return "headrace.yml" if self.is_bundle else self.file.name

    @property
    def is_bundle(self) -> bool:
        """Whether the spec is an asset bundle of Databricks, without a spec of ours."""
        return self.file.stem == "databricks"

    def table_name(self, text: str) -> TableName:
        return TableName.parse(text, self.database, self.catalog)

    @property
    def own_values(self) -> dict[str, str]:
        """The part of `configuration` that is not Spark's; queries read it with ``spark.conf.get``."""
        return {key: value for key, value in self.configuration.items() if not key.startswith("spark.")}
