"""The jar of the wheel and the jars of Hadoop's client of S3."""

import re
import zipfile

from tools.build_java import JAR, SOURCES, packed_hash, source_hash

from headrace.runtime.jars import locked_jars, spark_jars_folder


def test_the_jar_is_made_from_the_sources() -> None:
    assert packed_hash() == source_hash(), "run `make java`"


def test_the_jar_has_each_class_and_nothing_else() -> None:
    with zipfile.ZipFile(JAR) as jar:
        names = {name.partition("$")[0].removesuffix(".class") for name in jar.namelist()}
    sources = {path.relative_to(SOURCES).with_suffix("").as_posix() for path in SOURCES.rglob("*.java")}
    assert names == {*sources, "META-INF/MANIFEST.MF"}


def test_the_jars_for_s3_are_small_and_none_is_in_spark() -> None:
    jars = locked_jars("s3")
    assert sum(jar.size for jar in jars) < 15_000_000
    names = {jar.coordinate.artifact for jar in jars}
    assert {"hadoop-aws", "s3", "analyticsaccelerator-s3"} <= names
    assert not names & {"bundle", "commons-logging"}
    in_spark = {re.sub(r"-[0-9][^-]*$", "", path.stem) for path in spark_jars_folder().glob("*.jar")}
    assert not names & in_spark
