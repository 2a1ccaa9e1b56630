"""A Java home as Spark's own launcher wants it, made of the Java that Headrace uses."""

from __future__ import annotations

import shlex
from pathlib import Path

from headrace.runtime.jars import find_java

_SHIM = """#!/bin/sh
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""
"""The wheel's Java lacks a module that Spark's launcher names; this drops the option."""


def make_java_home(folder: Path) -> Path:
    """Make the home in a folder that is there, and return it."""
    shim = folder / "bin" / "java"
    shim.parent.mkdir()
    shim.write_text(_SHIM.format(java=shlex.quote(str(find_java().executable))))
    shim.chmod(0o755)
    return folder
