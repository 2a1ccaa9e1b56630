"""Servers of S3 for tests: moto, from PyPI and in memory; versitygw, in Go and on disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from headrace.runtime.places import cache_folder
from headrace.runtime.processes import end, start_bound
from waiting import until

ACCESS_KEY = "AKIAHEADRACETEST"
SECRET_KEY = "the-secret-of-the-test-server"
REGION = "us-east-1"

_VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
_START_S = 60.0


@contextmanager
def start_moto() -> Iterator[str]:
    """Start moto in this process; yields its address."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@contextmanager
def start_versitygw(folder: Path) -> Iterator[str]:
    """Start versitygw over a folder; yields its address."""
    program = find_versitygw()
    assert program is not None, "ask find_versitygw first"
    data = folder / "data"
    data.mkdir(parents=True)
    port = _free_port()
    command = [str(program), "--port", f"127.0.0.1:{port}", "--access", ACCESS_KEY, "--secret", SECRET_KEY]
    command += [
        "--region",
        REGION,
        "--quiet",
        "posix",
        "--nometa",
        "--sidecar",
        str(folder / "meta"),
        str(data),
    ]
    (folder / "meta").mkdir()
    process = start_bound(command, folder / "versitygw.log")
    try:
        until(lambda: _listens(port), f"versitygw listens ({folder}/versitygw.log)", _START_S)
        yield f"http://127.0.0.1:{port}"
    finally:
        end(process, 5.0)


def create_bucket(url: str, name: str) -> None:
    import boto3

    client = boto3.client(
        "s3",
        endpoint_url=url,
        aws_access_key_id=ACCESS_KEY,
        aws_secret_access_key=SECRET_KEY,
        region_name=REGION,
    )
    with contextlib.closing(client):
        client.create_bucket(Bucket=name)


@cache
def find_versitygw() -> Path | None:
    """The program, built once with Go; None without Go, or without a way to the modules of Go."""
    found = shutil.which("versitygw")
    if found is not None:
        return Path(found)
    program = cache_folder() / "tests" / "versitygw-1.8.0" / "versitygw"
    if program.is_file():
        return program
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        return None
    environment = {**os.environ, "GOBIN": str(program.parent), "CGO_ENABLED": "0"}
    built = subprocess.run([go, "install", _VERSITYGW], env=environment, capture_output=True, check=False)
    return program if built.returncode == 0 else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
        return True
    return False
