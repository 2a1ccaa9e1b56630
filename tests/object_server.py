"""A real S3 server of this machine: moto, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.storage.s3 import access

KEY, SECRET = "planted-key", "pl4nted/s3+secret"
REGION = "us-east-1"
_SERVER = """
from threading import Lock
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple

app, lock = DomainDispatcherApplication(create_backend_app), Lock()

def serve(environ, start_response):
    with lock:
        return [b"".join(app(environ, start_response))]

run_simple("127.0.0.1", 0, serve, threaded=True)
"""
"""One request after another: moto looks at a condition and writes in two steps."""

_REQUEST = re.compile(r'"(?:\x1b\[[\d;]*m)*([A-Z]+ /\S+) HTTP')
_READY = re.compile(r"Running on (http://\S+)")


@dataclass(frozen=True)
class ObjectServer:
    url: str
    log: list[str] = field(default_factory=list, repr=False)

    @cached_property
    def client(self) -> Any:
        """A client that shares no code with Headrace's own."""
        import botocore.session

        return botocore.session.Session().create_client(
            "s3",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )

    @property
    def table_options(self) -> dict[str, str]:
        """The options of `deltalake` for tables of this server."""
        return {
            "aws_endpoint_url_s3": self.url,
            "aws_region": REGION,
            "aws_access_key_id": KEY,
            "aws_secret_access_key": SECRET,
            "aws_allow_http": "true",
        }

    def requests(self) -> list[str]:
        """The method and the path of each request up to now."""
        return [found[1] for found in map(_REQUEST.search, list(self.log)) if found is not None]

    def make_bucket(self) -> str:
        # Spark keeps the client of a bucket, also after its server has ended.
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        self.client.create_bucket(Bucket=name)
        return name

    def reach(self, patch: pytest.MonkeyPatch, url: str | None = None) -> None:
        """Let this process, and those that it starts, find the server as they would find AWS.

        Args:
            url: Of a proxy before the server.
        """
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_ENDPOINT_URL_S3", url or self.url)
        patch.setenv("AWS_REGION", REGION)
        patch.setenv("AWS_ACCESS_KEY_ID", KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        open_buckets(patch)


def open_buckets(patch: pytest.MonkeyPatch) -> None:
    """Let this process use S3, as a process that has used no bucket yet."""
    patch.setattr(access, "BUCKETS", access.Buckets())


def assert_nowhere(secret: str, server: ObjectServer, bucket: str, *folders: Path) -> None:
    """No object, file or command line has a secret."""
    for page in server.client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for one in page["Contents"]:
            data = server.client.get_object(Bucket=bucket, Key=one["Key"])["Body"].read()
            assert secret.encode() not in data, one["Key"]
    for path in (path for folder in folders for path in folder.rglob("*")):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(process.cmdline())
            # The server of other tests takes it as an argument.
            assert secret not in line or "versitygw" in line


@contextmanager
def running_server() -> Iterator[ObjectServer]:
    command = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            found = next(filter(None, map(_READY.search, process.stderr)))
            server = ObjectServer(found[1])
            # A line for each request.
            threading.Thread(target=server.log.extend, args=(process.stderr,), daemon=True).start()
            yield server
        finally:
            process.terminate()
