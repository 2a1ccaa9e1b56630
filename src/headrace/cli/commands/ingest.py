"""`headrace ingest`: a table from a topic, without a file."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click
from rich.console import Group
from rich.text import Text

from headrace.cli.kafka import ReachedKafka, not_found, reach
from headrace.cli.output import Output, Result, TextOutput
from headrace.cli.rows import split_columns, table_rows
from headrace.cli.verb import Invocation, LocalFolder, log_options, option, refuse, verb
from headrace.cli.watching import show_outcome, watched
from headrace.errors import CommandLineError, HeadraceError, TopicNotFoundError
from headrace.model.project import ProjectSettings
from headrace.model.texts import counted
from headrace.observe.log import LogSettings
from headrace.project.ingest_code import Mode
from headrace.sources.kafka.cluster import KafkaCluster
from headrace.sources.kafka.subscription import whole

if TYPE_CHECKING:
    from headrace.project.ingesting import IngestFolder, IngestRequest, PreparedTopic

_SHOWN_ROWS = 20


def read_names(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """``A,B``: the names of columns."""
    return None if value is None else tuple(split_columns(value))


@verb(
    examples=(
        "headrace ingest orders",
        "headrace ingest customers --mode upsert --keys id --sequence-by changed_at --trial",
        "headrace ingest shop.public.customers --mode cdc",
        "headrace ingest --topics 'orders.*' --continuous",
        "headrace ingest orders --save shop",
    )
)
@click.argument("topic", required=False)
@option("--topics PATTERN", "Ingest all topics whose whole name matches this regular expression.")
@option(
    "--mode",
    "append: one row per record (the default); upsert: one row per key, from its newest record; "
    "cdc: the current rows, from change events of Debezium.",
    click.Choice(get_args(Mode)),
)
@option("--keys A,B", "The columns that identify a row; default: the key of the records.", read_names)
@option(
    "--sequence-by COLUMN",
    "The record with the greatest value wins; default: Kafka's timestamp, then partition and offset.",
)
@option("--partition-by A,B", "Columns that partition the table.", read_names)
@option("--cluster-by A,B", "Columns that cluster the table.", read_names)
@option(
    "--table NAME",
    "The name of the table. {topic} is the topic, with - and . replaced by _ ; default: {topic}.",
)
@option("--keep-raw", "Also write the original bytes of the records to the table NAME_raw.")
@option(
    "--schema FILE",
    "A file with the columns of the records: a DDL string (.ddl) or a StructType (.json).",
    click.Path(path_type=Path),
)
@option("--update-schema", "Add new fields of the records to the stored schema.")
@option(
    "--once/--continuous",
    "Process the records that exist now (the default), or run until stopped.",
    default=True,
)
@option("--trial", "Write all records to a new table NAME_trial, and show its rows.")
@option("--save DIR", "Write a pipeline that does the same, and do not run it.", LocalFolder(file_okay=False))
@option("--no-optimize", "Do not compact the tables after the run.")
@option("--no-vacuum", "Do not delete files that the tables no longer need.")
@log_options
def ingest(
    invocation: Invocation,
    topic: str | None,
    topics: str | None,
    schema: Path | None,
    update_schema: bool,
    once: bool,
    trial: bool,
    save: Path | None,
    no_optimize: bool,
    no_vacuum: bool,
    log: LogSettings,
    **options: Any,
) -> Result:
    """Create a table from a topic of JSON records, and bring it up to date.

    The table has the fields of the records, and the columns kafka_key, kafka_topic, kafka_partition,
    kafka_offset and kafka_ts. The first call infers the schema from up to 100,000 records. It stores the
    schema and the options in the storage, so later calls need only the topic. With --mode upsert, a record
    without a value (a tombstone) deletes the row of its key.

    In the folder of a pipeline, the command uses the pipeline's storage and Kafka cluster. In any other
    folder it uses ./lake and the shared embedded broker. To use a different storage or cluster, set
    --storage or --set kafka.bootstrap.servers=HOST:PORT.
    """
    from headrace.project.ingesting import IngestFolder, IngestRequest

    kept = save is not None
    refuse(
        ((topic is None) == (topics is None), "name one topic, or a pattern with --topics"),
        (schema is not None and update_schema, "--schema and --update-schema cannot be used together"),
        (trial and kept, "--trial and --save cannot be used together"),
        (trial and not once, "--trial and --continuous cannot be used together"),
        (kept and not once, "--save and --continuous cannot be used together"),
    )
    given = {name: value for name, value in options.items() if value not in (None, False)}
    request = IngestRequest(given=given, schema=schema, update_schema=update_schema, trial=trial)
    settings = invocation.settings(anywhere=True)
    ingestion = _Ingestion(invocation.output, settings, IngestFolder(settings, trial=trial))
    ingestion.prepare(topic, topics, request)
    if save is not None:
        return ingestion.save(save)
    care = {"optimize": once and not no_optimize, "vacuum": once and not no_vacuum}
    return ingestion.run(log, care, continuous=not once)


@dataclass
class _Ingestion:
    output: Output
    settings: ProjectSettings
    folder: IngestFolder
    prepared: list[PreparedTopic] = field(default_factory=list)
    errors: list[HeadraceError] = field(default_factory=list)
    """The errors of topics of a pattern that cannot be ingested."""

    def prepare(self, topic: str | None, topics: str | None, request: IngestRequest) -> None:
        from headrace.project.ingesting import check_tables, prepare

        kafka = reach(self.settings.kafka, self.output)
        reached = replace(self.settings, kafka=kafka.connection)
        for name in [topic] if topic is not None else _matching(topics or "", kafka):
            try:
                with self.output.progress(f"Reading {name}"):
                    self.prepared.append(prepare(name, request, self.folder, reached))
            except TopicNotFoundError as error:
                raise not_found(error, kafka, KafkaCluster(kafka.connection)) from error
            except HeadraceError as error:
                if topics is None:
                    raise
                self.errors.append(error)
        if not self.prepared:
            raise self.errors[0]
        check_tables(one.ingested for one in self.prepared)

    def run(self, log: LogSettings, care: Mapping[str, bool], *, continuous: bool) -> Result:
        from headrace.project.pipeline import Pipeline

        output, is_trial = self.output, self.folder.is_trial
        for one in self.prepared:
            output.line({"ingest": one.to_json()})
            for line in _lines(one):
                output.note(line)
        settings = self.folder.open(self.prepared)
        output.folders.insert(0, settings.root)
        tables = [name for one in self.prepared for name in one.ingested.tables]
        with Pipeline(settings) as pipeline:
            with watched(output, settings, "Starting Spark") as (watch, stop, received):
                result = pipeline.run(continuous=continuous, emit=watch, stop=stop, log=log)
            if result.outcome != "failed" and not received and not is_trial and any(care.values()):
                with output.progress("Maintaining the tables"):
                    done = pipeline.maintain(tables, optimize=care["optimize"], vacuum=care["vacuum"])
                for maintained in done:
                    output.line({"maintenance": maintained.to_json()})
                    for line in maintained.lines():
                        output.note(line)
            for error in self.errors:
                output.error(error)
            shown = show_outcome(output, result, received)
            for table in tables if is_trial and result.outcome != "failed" else ():
                _show_rows(output, pipeline.read(table, limit=_SHOWN_ROWS))
        return replace(shown, exit_code=shown.exit_code or (1 if self.errors else 0))

    def save(self, folder: Path) -> Result:
        from headrace.project.ingesting import save_pipeline

        written, variables = save_pipeline(folder, self.prepared, self.settings)
        lines = ["Wrote", *(f"  {file}" for file in written)]
        if variables:
            lines += ["Set these variables of the environment", *(f"  {name}" for name in variables)]
        lines += ["Next", f"  headrace run --project {shlex.quote(str(folder))}"]
        data = {"paths": [str(file) for file in written], "variables": variables}
        code = 1 if self.errors else 0
        return Result(data=data, text="\n".join(lines), errors=self.errors, exit_code=code)


def _matching(pattern: str, kafka: ReachedKafka) -> Sequence[str]:
    cluster = KafkaCluster(kafka.connection)
    try:
        found = [name for name in cluster.matching(whole(pattern)) if not name.startswith("__")]
    except ValueError as error:
        raise CommandLineError(
            f"--topics {error}",
            remedies=["write a regular expression for whole names: --topics 'orders.*'"],
            params={"command": "headrace ingest", "pattern": pattern},
        ) from error
    if not found:
        known = cluster.topics()
        raise TopicNotFoundError(
            f"no topic matches `{pattern}`",
            facts=[f"topics of the broker: {', '.join(known[:10])}" if known else "the broker has no topics"],
            remedies=["write a regular expression for whole names: --topics 'orders.*'"],
            params={"topic": pattern, "known": list(known)},
        )
    return found


def _show_rows(output: Output, rows: Any) -> None:
    output.line({"rows": rows.to_json()})
    if isinstance(output, TextOutput):
        more = " or more" if rows.is_cut else ""
        table, remark = table_rows(rows)
        count = f"{counted(len(rows.rows), 'row')}{more} of {rows.table}{remark}"
        output.console().print(Group(table, Text(count)))


def _lines(one: PreparedTopic) -> Iterator[str]:
    """What the command has found of a topic, before the run."""
    ingested = one.ingested
    by = f" by {', '.join(ingested.key_columns)}" if ingested.mode != "append" else ""
    yield f"{ingested.topic} -> table {ingested.table}, {ingested.mode}{by}"
    if one.sample is None or one.inferred is None:
        return
    sample, inferred = one.sample, one.inferred
    of = f" of {sample.held:,}" if sample.held > sample.records else ""
    yield f"  schema from {sample.records:,}{of} records: {inferred.ddl}"
    yield from (f"  {found.path}: {found.problem} -> {found.became}" for found in inferred.conflicts)
    if sample.without_key and ingested.mode == "upsert" and not ingested.keys:
        yield f"  {sample.without_key:,} records have no key: they go to the quarantine"
