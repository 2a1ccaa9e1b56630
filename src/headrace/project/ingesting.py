"""Makes a pipeline of topics for `headrace ingest`: its files in the storage, which the run then loads."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace import errors
from headrace.contracts.schema_types import FOLDER, load_schema_file, render_schema
from headrace.declare.spec import load_project
from headrace.errors import HeadraceError, did_you_mean
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.secrets import is_secret_key
from headrace.project.engine import Engine
from headrace.project.inferring import InferredSchema, TopicSample, compare, field_lines, read_sample
from headrace.project.ingest_code import (
    KAFKA_COLUMNS,
    IngestedTopic,
    Mode,
    build_code,
    build_spec,
    variable_of,
)
from headrace.project.pipeline import Pipeline
from headrace.project.template.files import write_new
from headrace.project.working_copy import WorkingCopy
from headrace.sources.kafka.sample_data import parse_columns
from headrace.storage.table_log import is_table

if TYPE_CHECKING:
    from headrace.project.maintenance import MaintenanceResult
    from headrace.run.schedule import RunResult
    from headrace.run.stop import StopSignal

NAME = "ingest"  # the name of the folder in the storage
_CODE = "transformations"
_SUFFIXES = (".json", ".ddl")
_PART = re.compile(r"[A-Za-z0-9_]{1,200}")


@dataclass(frozen=True, kw_only=True)
class IngestRequest:
    """What a command line says of a topic; ``None`` where it says nothing."""

    given: Mapping[str, Any]
    schema: Path | None = None
    update_schema: bool = False  # whether the kept schema takes up the fields and types of the records
    trial: bool = False  # whether the tables are those of a trial


@dataclass(frozen=True, kw_only=True)
class PreparedTopic:
    ingested: IngestedTopic
    columns: Mapping[str, str]
    schema: tuple[str, str]
    inferred: InferredSchema | None = None  # the schema that was read from the records now, if it was
    sample: TopicSample | None = None

    def to_json(self) -> dict[str, Any]:
        found = None if self.inferred is None else self.inferred.to_json()
        facts = asdict(self.ingested)
        return {
            "topic": facts.pop("topic"),
            "dataset": facts.pop("table"),
            **facts,
            "columns": dict(self.columns),
            "inferred": found,
        }


class IngestFolder:
    def __init__(self, settings: ProjectSettings, *, trial: bool = False) -> None:
        self._settings = settings
        self.is_trial = trial
        root = settings.storage.root / NAME
        self._home = root / "trial" if trial else root
        self._copy = WorkingCopy(self._home)
        self.root: Path = self._copy.root

    def load(self, table: str) -> IngestedTopic | None:
        try:
            kept = json.loads((self.root / f"{table.replace('.', '_')}.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()
        }
        return IngestedTopic(**values)

    def schema_file(self, table: str) -> Path | None:
        names = (f"{table.replace('.', '_')}{suffix}" for suffix in _SUFFIXES)
        return next((file for name in names if (file := self.root / FOLDER / name).exists()), None)

    def open(self, topics: Sequence[PreparedTopic]) -> ProjectSettings:
        """Write the files of topics, and return the settings of a pipeline with these topics alone."""
        for one in topics:
            if self.is_trial:
                self._clear(one.ingested)
        schemas = [
            self.root / FOLDER / f"{one.ingested.file}{suffix}" for one in topics for suffix in _SUFFIXES
        ]
        for schema in schemas:
            schema.unlink(missing_ok=True)
        root = self._settings.storage.root
        storage = str(root)
        if root.is_local:
            storage = "../.." if self.is_trial else ".."
        texts = _files(self.root, topics, self._settings, storage)
        for one in topics:
            kept = json.dumps(asdict(one.ingested), indent=1)
            texts[self.root / f"{one.ingested.file}.json"] = kept + "\n"
        for file, text in texts.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        self._copy.keep(texts, [schema for schema in schemas if schema not in texts])
        return replace(
            self._settings,
            file=self.root / "headrace.yml",
            kept_in=self._home,
            libraries=tuple(f"{_CODE}/{one.ingested.file}.py" for one in topics),
            consumer_groups=self._settings.consumer_groups and not self.is_trial,
        )

    def _clear(self, ingested: IngestedTopic) -> None:
        """Remove the tables of an earlier trial, with their checkpoints."""
        for text in (ingested.table, ingested.raw_table):
            name, storage = self._settings.table_name(text), self._settings.storage
            for folder in (
                storage.table(name),
                storage.quarantine(name),
                storage.tombstones(name),
                storage.checkpoints(name),
                storage.root / "ledger" / str(name),
            ):
                folder.delete_folder()


def save_pipeline(
    folder: Path, topics: Sequence[PreparedTopic], settings: ProjectSettings
) -> tuple[tuple[Path, ...], list[str]]:
    """Write a pipeline that ingests topics; existing files are not changed. Return the files, the spec first,
    and the environment variables that it needs."""
    root = settings.storage.root
    storage = os.path.relpath(str(root), folder.absolute()) if root.is_local else str(root)
    files = _files(folder, topics, settings, storage)
    given = (*settings.kafka.settings, *settings.configuration)
    variables = [variable_of(key) for key in given if is_secret_key(key)]
    return write_new(files, "save to another folder"), variables


def _files(
    folder: Path, topics: Sequence[PreparedTopic], settings: ProjectSettings, storage: str
) -> dict[Path, str]:
    """The files of a pipeline: spec, code and schemas."""
    texts = {
        "headrace.yml": build_spec(
            folder, settings.name, storage, settings.database, settings.kafka, settings.configuration
        )
    }
    for one in topics:
        text, suffix = one.schema
        schema = f"{FOLDER}/{one.ingested.file}{suffix}"
        texts[f"{_CODE}/{one.ingested.file}.py"] = build_code(one.ingested, one.columns, schema)
        texts[schema] = text
    return {folder / name: text for name, text in texts.items()}


def prepare(
    topic: str, request: IngestRequest, folder: IngestFolder, settings: ProjectSettings
) -> PreparedTopic:
    """Find the schema of a topic, and check that its table can be made; writes nothing."""
    ingested = _resolve(topic, request, folder)
    _check_free(ingested, request, folder, settings)
    kept = request.schema or folder.schema_file(ingested.table)
    sample = inferred = None
    if kept is None or request.update_schema or (ingested.mode == "cdc" and not ingested.keys):
        sample = read_sample(settings.kafka, topic, debezium=ingested.mode == "cdc")
        ingested = _with_keys(ingested, sample)
    if kept is not None and not request.update_schema:
        schema, columns = _load_schema(kept)
    else:
        file = kept or folder.root / FOLDER / f"{ingested.file}.json"
        inferred = _infer(topic, sample or TopicSample(), file)
        schema = (render_schema(inferred.schema) + "\n", ".json")
        columns = dict(field_lines(inferred.schema))
    _check_columns(ingested, columns)
    return PreparedTopic(ingested=ingested, columns=columns, schema=schema, inferred=inferred, sample=sample)


def check_tables(topics: Iterable[IngestedTopic]) -> None:
    owners: dict[str, str] = {}
    for one in topics:
        for table in one.tables:
            other = owners.setdefault(table, one.topic)
            if other != one.topic:
                raise errors.CommandLineError(
                    f"the topics {other} and {one.topic} have the same table {table}",
                    facts=["nothing was written"],
                    remedies=[f"ingest one of them alone:   headrace ingest {one.topic} --table {table}_2"],
                    params={"command": "headrace ingest", "topics": [other, one.topic]},
                )


def table_name(topic: str, pattern: str) -> str:
    """The name of a topic's table: ``-`` and ``.`` become ``_``."""
    name = pattern.replace("{topic}", re.sub(r"[-.]", "_", topic))
    parts = name.split(".")
    if len(parts) > 2 or not all(_PART.fullmatch(part) for part in parts):
        raise errors.CommandLineError(
            f"`{name}` is not a valid table name",
            facts=["a name has letters, digits and `_`; a schema can precede it, as in bronze.orders"],
            remedies=["use --table NAME, in which {topic} stands for the topic: --table 'raw_{topic}'"],
            params={"command": "headrace ingest", "dataset": name},
        )
    return name


def _resolve(topic: str, request: IngestRequest, folder: IngestFolder) -> IngestedTopic:
    suffix = "_trial" if request.trial else ""
    wanted = IngestedTopic(
        topic=topic,
        **{**request.given, "table": table_name(topic, request.given.get("table", "{topic}")) + suffix},
    )
    before = None if request.trial else folder.load(wanted.table)
    if before is None and wanted.mode == "append" and (wanted.keys or wanted.sequence_by):
        raise errors.CommandLineError(
            "--keys and --sequence-by need --mode upsert or --mode cdc",
            remedies=["see the options:   headrace ingest --help"],
            params={"command": "headrace ingest"},
        )
    if before is None:
        return wanted
    given = {name: getattr(wanted, name) for name in (*request.given, "topic")}
    if changed := [name for name, value in given.items() if getattr(before, name) != value]:
        name = changed[0]
        option = "the topic" if name == "topic" else f"--{name.replace('_', '-')}"
        raise errors.IngestChangedError(
            f"the table {wanted.table} was made with other options: {option} was "
            f"{_shown(getattr(before, name))}, and is now {_shown(getattr(wanted, name))}",
            facts=["nothing was read or written"],
            remedies=[
                f"continue as before:   headrace ingest {before.topic} --table {before.table}",
                f"or make another table:   headrace ingest {topic} --table {wanted.table}_2"
                f"{typed_options(request)}",
            ],
            params={"dataset": wanted.table, "options": changed},
        )
    return before


def typed_options(request: IngestRequest) -> str:
    """The options of a command line for one topic, without the table."""
    given = {**request.given, "schema": request.schema}
    values = {
        name.replace("_", "-"): value
        for name, value in given.items()
        if name != "table" and value is not None
    }
    return "".join(
        f" --{name}" if value is True else f" --{name} {shlex.quote(_shown(value))}"
        for name, value in values.items()
    )


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value) or "not set"
    return "not set" if value is None else str(value)


def _check_free(
    ingested: IngestedTopic, request: IngestRequest, folder: IngestFolder, settings: ProjectSettings
) -> None:
    """Refuse a table that something else has made."""
    if folder.load(ingested.table) is not None:
        return
    for table in ingested.tables:
        path = settings.storage.table(TableName.parse(table, settings.database))
        if is_table(path):
            raise errors.IngestTableTakenError(
                f"the table {table} exists, and was not made by headrace ingest",
                facts=[str(path), "nothing was read or written"],
                remedies=[
                    f"make another table:   headrace ingest {ingested.topic} --table {ingested.table}_topic"
                    f"{typed_options(request)}"
                ],
                params={"dataset": table, "topic": ingested.topic},
            )


def _with_keys(ingested: IngestedTopic, sample: TopicSample) -> IngestedTopic:
    if ingested.mode == "append" or ingested.keys or not sample.records:
        return ingested
    problem = None
    if sample.without_key == sample.records:
        problem = "have no key"
    elif ingested.mode == "cdc":
        if sample.key_fields:
            return replace(ingested, keys=sample.key_fields)
        problem = "have a key that is not a JSON object with the columns of the table's key"
    elif sample.binary_keys:
        problem = f"have a key that is not UTF-8 text ({sample.binary_keys:,} of {sample.records:,} records)"
    if problem is None:
        return ingested
    raise errors.CommandLineError(
        f"the records of {ingested.topic} {problem}",
        facts=["nothing was written"],
        remedies=[
            f"name the columns that identify a row:   headrace ingest {ingested.topic} "
            f"--mode {ingested.mode} --keys id",
            *(["or keep all records:   --mode append"] if ingested.mode == "upsert" else []),
        ],
        params={"command": "headrace ingest", "topic": ingested.topic},
    )


def _infer(topic: str, sample: TopicSample, kept: Path) -> InferredSchema:
    try:
        found = compare(topic, sample.inference, kept, str(kept), 0.0)
    except errors.SchemaNotInferredError as error:
        raise error.with_(
            remedies=[
                f"write the columns of its records into a file:   echo 'id LONG, name STRING' > {topic}.ddl",
                f"and name the file:   headrace ingest {topic} --schema {topic}.ddl",
                "or write a pipeline that reads other formats:   headrace init",
            ]
        ) from error
    declared = sample.declared
    listed = [{**one, "type": declared.get(one["name"], one["type"])} for one in found.schema["fields"]]
    return replace(found, schema={**found.schema, "fields": listed}) if found.changes is None else found


def _load_schema(file: Path) -> tuple[tuple[str, str], dict[str, str]]:
    if file.suffix == ".json":
        schema = load_schema_file(file, str(file))
        if schema is not None:
            return (file.read_text(encoding="utf-8-sig"), ".json"), dict(field_lines(schema))
    if not file.is_file():
        raise errors.CommandLineError(
            f"the schema file {file} does not exist",
            remedies=["name a file of columns (.ddl) or of a StructType (.json)"],
            params={"command": "headrace ingest", "path": str(file)},
        )
    text = file.read_text(encoding="utf-8-sig")
    return (text, ".ddl"), {name: kind.sql("spark") for name, kind in parse_columns(text).items()}


def _check_columns(ingested: IngestedTopic, columns: Mapping[str, str]) -> None:
    """Refuse columns that the table will not have, and fields with the names of other columns."""
    own = (*KAFKA_COLUMNS, "_source", *(("_sequence",) if ingested.mode != "append" else ()))
    if taken := [name for name in columns if name.lower() in own]:
        raise errors.ColumnInvalidError(
            f"the records of {ingested.topic} have a field `{taken[0]}`, a name that ingest needs itself",
            remedies=["write a pipeline that renames the field:   headrace init"],
            params={"column": taken[0], "topic": ingested.topic},
        )
    options = {
        "--keys": ingested.keys,
        "--sequence-by": (ingested.sequence_by,) if ingested.sequence_by else (),
        "--partition-by": ingested.partition_by,
        "--cluster-by": ingested.cluster_by,
    }
    payload = list(columns)
    for option, names in options.items():
        known = payload if option == "--keys" else [*payload, *KAFKA_COLUMNS]
        for name in names:
            if name not in known:
                raise errors.ColumnNotFoundError(
                    f"{option}: the records of {ingested.topic} have no field `{name}`",
                    facts=[f"their fields: {', '.join(payload)}"],
                    remedies=did_you_mean(name, known, "use one of these fields"),
                    params={"column": name, "option": option, "known": known},
                )


@dataclass(frozen=True, kw_only=True)
class IngestResult:
    """What `ingest` has done.

    Args:
        topic: The topic and its table.
        columns: The columns of the payload with their types as DDL.
        update: The result of the update: its flows with their rows, and their errors.
        maintenance: The maintenance of the tables.
    """

    topic: IngestedTopic
    columns: Mapping[str, str]
    update: RunResult
    maintenance: tuple[MaintenanceResult, ...] = ()


def ingest(
    topic: str,
    *,
    mode: Mode | None = None,
    keys: Sequence[str] | None = None,
    sequence_by: str | None = None,
    partition_by: Sequence[str] | None = None,
    cluster_by: Sequence[str] | None = None,
    table: str | None = None,
    keep_raw: bool | None = None,
    schema: str | Path | None = None,
    update_schema: bool = False,
    trial: bool = False,
    continuous: bool = False,
    optimize: bool = True,
    vacuum: bool = True,
    path: str | Path | None = None,
    profile: str | None = None,
    overrides: Mapping[str, str] | None = None,
    progress: bool = False,
    stop: StopSignal | None = None,
) -> IngestResult:
    """Make a table from a topic of JSON records, and bring it up to date.

    Args:
        mode: ``append`` (the default), ``upsert`` for the newest record of each key, ``cdc`` for Debezium.
        keys: The columns that identify a row; by default the key of the records.
        sequence_by: The record of a key with the greatest value wins; by default Kafka's timestamp.
        table: The name of the table; ``{topic}`` is replaced by the topic.
        keep_raw: Whether a second table keeps the records as they are.
        schema: A file with the columns of the records; by default the schema is inferred and kept.
        update_schema: Whether new fields of the records are added to the kept schema.
        trial: Whether to write a new table ``NAME_trial``, and nothing else.
        continuous: Whether to run until `stop` is set.
        optimize: Whether to compact the tables where that is due; not if `continuous` or `trial`.
        vacuum: Whether to delete files that the tables no longer need, where that is due.
        path: A pipeline whose storage and Kafka cluster are used; by default that of the current folder, or
            ``./lake`` and the embedded broker.
        overrides: Values for keys of its spec, by dotted name.

    Raises:
        HeadraceError: The topic cannot be ingested; errors of the flow are in the result's `update`.

    Example:
        >>> import headrace as hr
        >>> hr.ingest("customers", mode="upsert", keys=["id"]).update.outcome  # doctest: +SKIP
    """
    spec = None if path is None else Path(path)
    settings = load_project(spec, profile=profile, overrides=overrides, anywhere=True)
    given: dict[str, Any] = {
        "mode": mode,
        "keys": None if keys is None else tuple(keys),
        "sequence_by": sequence_by,
        "partition_by": None if partition_by is None else tuple(partition_by),
        "cluster_by": None if cluster_by is None else tuple(cluster_by),
        "table": table,
        "keep_raw": keep_raw,
    }
    request = IngestRequest(
        given={name: value for name, value in given.items() if value is not None},
        schema=None if schema is None else Path(schema),
        update_schema=update_schema,
        trial=trial,
    )
    folder = IngestFolder(settings, trial=trial)
    try:
        prepared = prepare(topic, request, folder, Engine(settings).reachable(start=True))
    except HeadraceError as error:
        raise settings.redactor.error(error) from error.__cause__
    with Pipeline(folder.open([prepared])) as pipeline:
        update = pipeline.run(continuous=continuous, progress=progress, stop=stop)
        result = IngestResult(topic=prepared.ingested, columns=prepared.columns, update=update)
        if update.outcome == "failed" or trial or continuous or not (optimize or vacuum):
            return result
        tables = prepared.ingested.tables
        return replace(result, maintenance=pipeline.maintain(tables, optimize=optimize, vacuum=vacuum))
