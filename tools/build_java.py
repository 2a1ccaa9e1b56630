"""Compile the Java classes for local files and object storage into the jars of the wheel: `make java`, with a
JDK 17.

Each jar names the hash of all sources, which a test compares. The same sources and JDK make the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from headrace.runtime.fetch import ensure_jars
from headrace.runtime.jars import spark_jars_folder

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "java"
JAR = ROOT / "src/headrace/storage/s3/headrace-s3.jar"
JARS = {"s3": JAR, "local": ROOT / "src/headrace/runtime/headrace-local.jar"}
"""The jar of each package below `io.headrace`."""
MANIFEST = "META-INF/MANIFEST.MF"
JAVA = "17"  # the oldest Java that runs Spark 4.2
_TIME = (1980, 1, 1, 0, 0, 0)


def source_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*.java")):
        digest.update(f"{path.relative_to(SOURCES).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def packed_hash(path: Path = JAR) -> str | None:
    """The hash of the sources from which a jar was made."""
    with zipfile.ZipFile(path) as jar:
        found = re.search(r"^Headrace-Sources: (\w+)", jar.read(MANIFEST).decode(), re.MULTILINE)
    return found[1] if found else None


def main() -> None:
    home = os.environ.get("JAVA_HOME")
    javac = shutil.which("javac", path=f"{home}/bin" if home else None)
    if javac is None:
        sys.exit("there is no javac: install a JDK 17 or newer, or set JAVA_HOME to one")
    jars = [*sorted(spark_jars_folder().glob("*.jar")), *ensure_jars("spark", "s3")]
    with tempfile.TemporaryDirectory() as name:
        command = [
            javac,
            "--release",
            JAVA,
            "-Xlint:all,-classfile,-path,-processing",
            "-Werror",
            "-g:source,lines",
        ]
        command += ["-cp", os.pathsep.join(map(str, jars)), "-d", name]
        subprocess.run([*command, *map(str, sorted(SOURCES.rglob("*.java")))], check=True)
        for package, jar in JARS.items():
            pack(Path(name), package, jar)


def pack(classes: Path, package: str, path: Path) -> None:
    manifest = f"Manifest-Version: 1.0\r\nHeadrace-Sources: {source_hash()}\r\n\r\n"
    with zipfile.ZipFile(path, "w") as jar:
        entries = [(MANIFEST, manifest.encode())]
        found = sorted((classes / "io/headrace" / package).rglob("*.class"))
        entries += [(path.relative_to(classes).as_posix(), path.read_bytes()) for path in found]
        for name, data in entries:
            entry = zipfile.ZipInfo(name, _TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            jar.writestr(entry, data)


if __name__ == "__main__":
    main()
