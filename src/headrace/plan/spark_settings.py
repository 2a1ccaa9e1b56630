"""Settings of Spark and Delta that nobody knows: Spark takes any name, and what is misspelt does nothing."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from headrace.errors import OptionUnknownError, SourceLocation
from headrace.model.declarations import Declarations
from headrace.model.project import ProjectSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FAMILIES = ("spark.sql.", "spark.databricks.delta.")
"""Whose names Spark and Delta keep a list of."""
_OPEN = ("spark.sql.catalog.", "spark.databricks.delta.properties.defaults.")
"""Families within them whose names are anybody's own."""
_ALIKE = 0.95
"""How like a known name an unknown one must be, by `difflib`, to be taken for a slip: there are settings
that are on no list, such as those of RocksDB."""


def find_misspelt(
    spark: SparkSession, settings: ProjectSettings, declarations: Declarations
) -> Iterator[OptionUnknownError]:
    """The settings of a pipeline and of its queries that are misspelt.

    Args:
        spark: Its JVM has the lists.
        settings: The pipeline's.
        declarations: What its files declare.
    """
    yield from _misspelt(spark, settings.configuration, settings.name, SourceLocation(settings.file.name, 0))
    for declared in (*declarations.datasets, *declarations.flows):
        own: Mapping[str, str] = getattr(declared, "spark_conf", {})
        yield from _misspelt(spark, own, str(declared.name), declared.location)


def _misspelt(
    spark: SparkSession, given: Mapping[str, str], name: str, location: SourceLocation
) -> Iterator[OptionUnknownError]:
    entries: Any = None
    for key in given:
        if not key.startswith(_FAMILIES) or key.startswith(_OPEN):
            continue
        entries = _entries(spark) if entries is None else entries
        if entries.findEntry(key) is not None:
            continue
        jvm: Any = spark._jvm
        known = [entry.key() for entry in jvm.java.util.ArrayList(entries.listAllEntries())]
        if near := difflib.get_close_matches(key, known, n=1, cutoff=_ALIKE):
            yield OptionUnknownError(
                f"`{name}` has the setting {key}, which neither Spark nor Delta knows",
                location=location,
                remedies=(f"did you mean `{near[0]}`?",),
                params={"name": name, "setting": key},
            )


def _entries(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    # Delta's settings are on the list from when its class is first used.
    getattr(getattr(jvm.org.apache.spark.sql.delta.sources, "DeltaSQLConf$"), "MODULE$")
    return jvm.org.apache.spark.internal.config.ConfigEntry
