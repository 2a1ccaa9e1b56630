"""Delta tables of the storage: opened, registered in the session's catalog, and looked at."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from headrace.errors import StorageUnreadableError, TableNameTakenError
from headrace.model.names import TableName, quoted_column, quoted_path
from headrace.runtime.gateway import active_session
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.storage.layout import locate_supported
from headrace.storage.location import Location
from headrace.storage.log_damage import naming_damage
from headrace.storage.table_log import checksum_matches_log, is_table, load_checksum, newest_version

CHECKPOINT_PROPERTY = "headrace.checkpoint."
"""Prefix of the properties that name the checkpoint which feeds the table, by flow."""

COMMENT_PROPERTY = "comment"
"""Set as a property, it becomes the table's comment."""

FENCED_PROPERTY = "headrace.fenced."
"""Prefix of the properties that name the checkpoint that the present one has replaced, by flow, and the last
batch of it whose rows the table kept: ``checkpoint:batch``."""

REFRESHING_PROPERTY = "headrace.refreshing"
"""Set while a full refresh is not complete: ``true`` until all flows of the emptied table are opened anew,
then `CLEARING` until its quarantine, tombstones and snapshots are cleared, too."""
CLEARING = "clearing"


@dataclass(frozen=True, kw_only=True)
class TableState:
    """A table's newest snapshot, as far as the protocol asks."""

    version: int
    table_id: str
    schema: Mapping[str, Any]
    properties: Mapping[str, str]
    transactions: Mapping[str, int]
    comment: str | None = None

    @property
    def checkpoints(self) -> dict[str, str]:
        return {
            key.removeprefix(CHECKPOINT_PROPERTY): value
            for key, value in self.properties.items()
            if key.startswith(CHECKPOINT_PROPERTY) and value
        }

    @property
    def refreshing(self) -> str | None:
        """`CLEARING` or ``true`` while a full refresh is not complete."""
        return self.properties.get(REFRESHING_PROPERTY)

    def fenced(self, flow: str) -> tuple[str, int] | None:
        """The checkpoint that a flow has replaced, and the last batch of it whose rows the table kept."""
        checkpoint, _, batch = self.properties.get(FENCED_PROPERTY + flow, "").rpartition(":")
        return (checkpoint, int(batch)) if checkpoint else None


def delta_log(spark: SparkSession, path: Location) -> Any:
    """Delta's own handle of a table, in the JVM."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, str(path))


def forget_snapshot(spark: SparkSession, path: Location) -> None:
    """Let Delta read the log of a table from the storage again."""
    jvm: Any = spark.sparkContext._jvm
    folder = jvm.org.apache.hadoop.fs.Path(str(path))
    jvm.org.apache.spark.sql.delta.DeltaLog.invalidateCache(spark._jsparkSession, folder)


def newest_snapshot(spark: SparkSession, path: Location) -> Any:
    jvm: Any = spark.sparkContext._jvm
    return delta_log(spark, path).update(False, jvm.scala.Option.empty(), jvm.scala.Option.empty())


def no_log(path: Location) -> StorageUnreadableError:
    """The error for a table that Delta takes for a new one, because its log was not found."""
    return StorageUnreadableError(
        f"the table {path.name} has no log at this moment",
        facts=(f"table {path}", "nothing was written"),
        remedies=("check the machine:   headrace doctor",),
        params={"path": str(path)},
    )


def read_state(spark: SparkSession, path: Location) -> TableState:
    with naming_damage(path):
        snapshot = newest_snapshot(spark, path)
    if snapshot.version() < 0:
        raise no_log(path)
    metadata = json.loads(snapshot.metadata().json())["metaData"]
    carried = checksum_transactions(snapshot)

    def transactions(found: Any) -> dict[str, int]:
        return {action["appId"]: action["version"] for action in read_scala(spark, found)}

    def compute() -> dict[str, int]:
        # The thread of a flow has no active session, and Delta needs one.
        with active_session(spark), naming_damage(path):
            return transactions(snapshot.setTransactions())

    # For the transactions, Delta computes the table's whole state: a Spark job for each new version.
    state = TableState(
        version=snapshot.version(),
        table_id=metadata["id"],
        schema=json.loads(metadata["schemaString"]),
        properties=metadata.get("configuration") or {},
        transactions=_Computed(compute),
        comment=metadata.get("description"),
    )
    if carried is not None:
        owner = snapshot.checksumOpt().get().txnId()
        quick = replace(state, transactions=transactions(carried))
        if owner.isDefined() and _is_in_log(quick, owner.get(), path):
            return quick
    return state


class _Computed(Mapping[str, int]):
    """A mapping that is computed when it is first read."""

    def __init__(self, compute: Callable[[], Mapping[str, int]]) -> None:
        self._compute = compute

    @cached_property
    def _entries(self) -> Mapping[str, int]:
        return self._compute()

    def __getitem__(self, key: str) -> int:
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def read_scala(spark: SparkSession, value: Any) -> Any:
    """A Scala collection as Python values, with one JVM call instead of several for each element."""
    jvm: Any = spark.sparkContext._jvm
    return json.loads(jvm.org.apache.spark.sql.delta.util.JsonUtils.mapper().writeValueAsString(value))


def checksum_transactions(snapshot: Any) -> Any | None:
    """The transactions of a snapshot as its checksum carries them, in the JVM.

    They are used only where the commits say the same (`checksum_matches_log`). ``None`` where there is no
    checksum, or where it carries none (a foreign writer, more than 100 ids).
    """
    checksum = snapshot.checksumOpt()
    carried = checksum.get().setTransactions() if checksum.isDefined() else checksum
    return carried.get() if carried.isDefined() else None


def _is_in_log(state: TableState, owner: str, path: Location) -> bool:
    """Whether a checksum file matches the log: version, checkpoints and last batches.

    The version alone is not enough: Delta derives each checksum from the one before. If that belonged to a
    commit that was removed from the log, every later one names the batch of that commit.
    """
    batches = {name: state.transactions.get(name) for name in state.checkpoints.values()}
    return checksum_matches_log(path, state.version, batches, owner)


def read_checksum(path: Location) -> TableState | None:
    """Read the table's newest snapshot from the checksum that Delta writes beside each commit; no JVM.
    ``None`` if there is none, if it does not carry the transactions, or if the commits do not confirm it."""
    version = newest_version(path)
    try:
        checksum = load_checksum(path, version)
        metadata = checksum["metadata"]
        owner = checksum["txnId"]
        state = TableState(
            version=version,
            table_id=metadata["id"],
            schema=json.loads(metadata["schemaString"]),
            properties=metadata["configuration"],
            transactions={action["appId"]: action["version"] for action in checksum["setTransactions"]},
            comment=metadata.get("description"),
        )
        return state if owner is not None and _is_in_log(state, owner, path) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def create_table(
    spark: SparkSession,
    name: TableName,
    path: Location,
    schema: Mapping[str, Any],
    *,
    properties: Mapping[str, str],
    partition_cols: tuple[str, ...] = (),
    cluster_by: tuple[str, ...] = (),
    comment: str | None = None,
) -> None:
    layout = ""
    if partition_cols:
        layout = f"PARTITIONED BY ({_columns(partition_cols)})"
    elif cluster_by:
        layout = f"CLUSTER BY ({_columns(cluster_by)})"
    listed = ", ".join(f"{_text(key)} = {_text(value)}" for key, value in properties.items())
    _ensure_schema(spark, name)
    if _is_registered(spark, name, path):
        # The catalog remembers a table whose folder is gone.
        spark.sql(f"DROP TABLE {quoted(name)}")
    if not is_table(path):
        # What a process leaves that is killed while it makes a table; Delta takes it for a foreign folder.
        _delete_log(spark, path / "_delta_log")
    spark.sql(
        f"CREATE TABLE {quoted(name)} ({ddl(spark, schema)}) USING delta {layout} "
        f"{f'COMMENT {_text(comment)}' if comment else ''} "
        f"LOCATION {_text(str(path))} {f'TBLPROPERTIES ({listed})' if listed else ''}"
    )


def _delete_log(spark: SparkSession, log: Location) -> None:
    from py4j.protocol import Py4JJavaError

    # Spark marks a folder of a bucket with an object whose name ends in a slash, and only Spark deletes it. A
    # commit, or a checkpoint, that another process has made meanwhile stays, and with it the folder.
    log.delete_files(name for name in log.list_files() if not name.endswith((".json", ".parquet")))
    jvm: Any = spark.sparkContext._jvm
    for folder in (*map(log.__truediv__, log.list_folders()), log):
        path = jvm.org.apache.hadoop.fs.Path(str(folder))
        with contextlib.suppress(Py4JJavaError):
            path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).delete(path, False)


def register_table(spark: SparkSession, name: TableName, path: Location) -> None:
    """Make a table of the storage known to the session's catalog."""
    _ensure_schema(spark, name)
    if not _is_registered(spark, name, path):
        spark.sql(f"CREATE TABLE IF NOT EXISTS {quoted(name)} USING delta LOCATION {_text(str(path))}")


def unregister_table(spark: SparkSession, name: TableName, path: Location) -> None:
    """Remove a table from the session's catalog, and leave its files; another table of the name stays."""
    with contextlib.suppress(TableNameTakenError):
        if _is_registered(spark, name, path):
            spark.sql(f"DROP TABLE {quoted(name)}")


def check_name(spark: SparkSession, name: TableName, path: Location) -> None:
    _is_registered(spark, name, path)


def alter_table(
    spark: SparkSession,
    path: Location,
    *,
    properties: Mapping[str, str],
    removed: tuple[str, ...] = (),
    renamed: Sequence[tuple[str, str]] = (),
    dropped: Sequence[str] = (),
    widened: Sequence[tuple[str, str]] = (),
    new_columns: Sequence[tuple[tuple[str, ...], Mapping[str, Any]]] = (),
    cluster_by: tuple[str, ...] = (),
    committed: Callable[[], None] = lambda: None,
) -> None:
    """Change the properties, the columns and the clustering of a table.

    Each change of a column is a commit. After a crash, another call can make the missing changes. `renamed`:
    columns and struct fields, by their dotted paths, and their new names. `committed`: called after each
    commit that renames, drops or widens a column.
    """
    target = f"delta.`{path}`"
    if properties:
        listed = ", ".join(f"{_text(key)} = {_text(value)}" for key, value in properties.items())
        spark.sql(f"ALTER TABLE {target} SET TBLPROPERTIES ({listed})")
    if removed:
        spark.sql(f"ALTER TABLE {target} UNSET TBLPROPERTIES ({', '.join(map(_text, removed))})")
    changes = [f"RENAME COLUMN {quoted_path(old)} TO {quoted_column(new)}" for old, new in renamed]
    changes += [f"DROP COLUMN {quoted_path(column)}" for column in dropped]
    changes += [f"ALTER COLUMN {quoted_path(column)} TYPE {kind}" for column, kind in widened]
    for change in changes:
        spark.sql(f"ALTER TABLE {target} {change}")
        committed()
    if new_columns:
        added = [
            "".join(f"`{part}`." for part in path[:-1]) + ddl(spark, {"type": "struct", "fields": [field]})
            for path, field in new_columns
        ]
        spark.sql(f"ALTER TABLE {target} ADD COLUMNS ({', '.join(added)})")
    if cluster_by:
        spark.sql(f"ALTER TABLE {target} CLUSTER BY ({_columns(cluster_by)})")


def quoted(name: TableName) -> str:
    return f"`{name.schema}`.`{name.name}`"


def as_nullable(schema: Any) -> Any:
    """A schema's JSON with every field nullable, as Delta's own streaming sink makes it."""
    if isinstance(schema, dict):
        return {
            key: True if key in ("nullable", "containsNull", "valueContainsNull") else as_nullable(value)
            for key, value in schema.items()
        }
    return [as_nullable(item) for item in schema] if isinstance(schema, list) else schema


def _is_registered(spark: SparkSession, name: TableName, path: Location) -> bool:
    """Whether the catalog knows the table; a session may serve several pipelines, or a metastore."""
    jvm: Any = spark.sparkContext._jvm
    catalog = spark._jsparkSession.sessionState().catalog()
    identifier = jvm.org.apache.spark.sql.catalyst.TableIdentifier(name.name, jvm.scala.Some(name.schema))
    if not catalog.tableExists(identifier):
        return False
    known = _location_text(catalog.getTableMetadata(identifier).location())
    found = locate_supported(known)
    if found is not None and found.resolve() == path.resolve():
        return True
    raise TableNameTakenError(
        f"the catalog of the Spark session already has another table {name}",
        facts=(
            f"location in the catalog: {known}",
            f"location in the pipeline: {path}",
            "nothing was read or written",
        ),
        remedies=(
            f"rename the table `{name.short}` of the pipeline",
            "or give the pipeline a schema of its own in headrace.yml; all its tables are made anew there "
            "from their sources, and the present ones are kept:   database: my_pipeline",
        ),
        params={"dataset": str(name), "location": known},
    )


def _location_text(uri: Any) -> str:
    """A location of the catalog, without the encoding of a URI."""
    path = str(uri.getPath()).rstrip("/")
    scheme, host = uri.getScheme(), uri.getAuthority()
    return path if scheme in (None, "file") else f"{scheme}://{host or ''}{path}"


def ddl(spark: SparkSession, schema: Mapping[str, Any]) -> str:
    jvm: Any = spark.sparkContext._jvm
    return str(jvm.org.apache.spark.sql.types.DataType.fromJson(json.dumps(schema)).toDDL())


def _ensure_schema(spark: SparkSession, name: TableName) -> None:
    if name.schema != "default":
        spark.sql(f"CREATE DATABASE IF NOT EXISTS `{name.schema}`")


def _columns(names: tuple[str, ...]) -> str:
    return ", ".join(".".join(f"`{part}`" for part in name.split(".")) for name in names)


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


_LOG = logging.getLogger(__name__)


def publish_table(spark: SparkSession, name: TableName, path: Location) -> None:
    """Update the entry of a registered table, if the session's catalog is a Hive metastore.

    Writes nothing if nothing has changed. A failure is only logged: queries find the table without it.
    """
    if spark.conf.get("spark.sql.catalogImplementation", "") != "hive":
        return
    try:
        _publish(spark, name, path)
    except Exception as error:
        _LOG.warning("the metastore entry of %s was not updated: %s", name, error)


def _publish(spark: SparkSession, name: TableName, path: Location) -> None:
    jvm: Any = spark.sparkContext._jvm
    as_java = jvm.scala.jdk.javaapi.CollectionConverters.asJava
    catalog = spark._jsparkSession.sharedState().externalCatalog()
    entry = catalog.getTable(name.schema, name.name)
    snapshot = newest_snapshot(spark, path)
    metadata = snapshot.metadata()
    wanted = dict(as_java(metadata.configuration()))
    held = dict(as_java(entry.properties()))
    same_columns = entry.schema().json() == metadata.schema().json()
    if not same_columns or not wanted.items() <= held.items():
        # Delta's own code to update an entry; Delta does not call it by default.
        writer = jvm.org.apache.spark.sql.delta.hooks.UpdateCatalog(entry)
        writer.updateSchema(spark._jsparkSession, snapshot)
        writer.updateProperties(spark._jsparkSession, snapshot)
        entry = catalog.getTable(name.schema, name.name)
    comment = metadata.description()
    known = entry.comment()
    if (known.get() if known.isDefined() else None) != comment:
        parts = {entry.productElementName(at): entry.productElement(at) for at in range(entry.productArity())}
        catalog.alterTable(entry.copy(*{**parts, "comment": jvm.scala.Option.apply(comment)}.values()))
