"""The jars of the wheel, and the jars of Hadoop's client of S3."""

import re
import zipfile

import pytest
from tools.build_java import JARS, SOURCES, packed_hash, source_hash

from headrace.runtime.jars import locked_jars, spark_jars_folder


@pytest.mark.parametrize("package", JARS)
def test_a_jar_is_made_from_the_sources(package: str) -> None:
    assert packed_hash(JARS[package]) == source_hash(), "run `make java`"


@pytest.mark.parametrize("package", JARS)
def test_a_jar_has_each_class_of_its_package_and_nothing_else(package: str) -> None:
    with zipfile.ZipFile(JARS[package]) as jar:
        names = {name.partition("$")[0].removesuffix(".class") for name in jar.namelist()}
    sources = (SOURCES / "io/headrace" / package).rglob("*.java")
    found = {path.relative_to(SOURCES).with_suffix("").as_posix() for path in sources}
    assert found and names == {*found, "META-INF/MANIFEST.MF"}


def test_the_jars_for_s3_are_small_and_none_is_in_spark() -> None:
    jars = locked_jars("s3")
    assert sum(jar.size for jar in jars) < 15_000_000
    names = {jar.coordinate.artifact for jar in jars}
    assert {"hadoop-aws", "s3", "analyticsaccelerator-s3"} <= names
    assert not names & {"bundle", "commons-logging"}
    in_spark = {re.sub(r"-[0-9][^-]*$", "", path.stem) for path in spark_jars_folder().glob("*.jar")}
    assert not names & in_spark
