"""Copies the columns, the comment and the properties of a table from its Delta log to a Hive metastore.

Spark reads them from the log. Delta does not write them to the metastore, where catalog browsers look for
them.
"""

from __future__ import annotations

import logging
from typing import Any

from headrace.model.names import TableName
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.sinks.delta.table import newest_snapshot
from headrace.storage.location import Location

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
