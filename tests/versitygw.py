"""A real S3 server on disk that decides a race of two writers as S3 does: versitygw, in Go."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from headrace.runtime.places import cache_folder
from headrace.runtime.processes import end, start_bound
from object_server import KEY, REGION, SECRET, ObjectServer
from ports import free_port, listens
from waiting import until

_VERSION = "1.8.0"
_MODULE = f"github.com/versity/versitygw/cmd/versitygw@v{_VERSION}"
_BUILD_S = 600.0
_START_S = 60.0

MISSING = "there is no versitygw, and no Go with which it could be built"


@contextmanager
def running_versitygw(folder: Path) -> Iterator[ObjectServer]:
    program = find_versitygw()
    assert program is not None, MISSING
    data, meta, log = folder / "data", folder / "meta", folder / "versitygw.log"
    for one in (data, meta):
        one.mkdir(parents=True)
    port = free_port()
    command = [str(program), "--port", f"127.0.0.1:{port}", "--access", KEY, "--secret", SECRET]
    command += ["--region", REGION, "--quiet", "posix", "--sidecar", str(meta), str(data)]
    process = start_bound(command, log)
    try:
        until(lambda: listens(port), f"versitygw listens ({log})", _START_S)
        yield ObjectServer(f"http://127.0.0.1:{port}")
    finally:
        end(process, 0)


@cache
def find_versitygw() -> Path | None:
    """The program, built once with Go; ``None`` without Go, or if it cannot be built."""
    found = shutil.which("versitygw")
    if found is not None:
        return Path(found)
    program = cache_folder() / "tests" / f"versitygw-{_VERSION}" / "versitygw"
    if program.is_file():
        return program
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        return None
    environment = {**os.environ, "GOBIN": str(program.parent), "CGO_ENABLED": "0"}
    with contextlib.suppress(subprocess.SubprocessError):
        subprocess.run([go, "install", _MODULE], env=environment, check=True, timeout=_BUILD_S)
        return program
    return None
