"""What Spark needs to read and write S3: Hadoop's client, our classes that fence a second writer, credentials."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import SpecInvalidError
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.runtime.storage_support import StorageSupport
from headrace.storage.s3.access import S3Access

if TYPE_CHECKING:
    from headrace.storage.s3.access import Credentials

ANY_BUCKET = "*"
"""The name for the buckets that have no settings of their own."""

_JAR = Path(__file__).with_name("headrace-s3.jar")
_CLASSES = "io.headrace.s3"
_LOG_STORE = f"{_CLASSES}.S3LogStore"
_SCHEMES = ("s3", "s3a")
_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"

_PLUGINS = "spark.plugins"
_FLAGS = "spark.hadoop.fs.s3a.performance.flags"

_FENCE = {
    # Delta's own log stores look first and write then: a second writer replaces the commit of the first.
    **{f"spark.delta.logStore.{scheme}.impl": _LOG_STORE for scheme in _SCHEMES},
    # Delta's kernel has settings of its own.
    **{f"spark.hadoop.io.delta.kernel.logStore.{scheme}.impl": _LOG_STORE for scheme in _SCHEMES},
    # A rename on S3 is a copy and a removal, and neither fences a second driver.
    _MANAGER: f"{_CLASSES}.S3CheckpointFiles",
    # Hadoop knows S3 as `s3a`; users and other engines write `s3`.
    "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.s3.impl": "org.apache.hadoop.fs.s3a.S3A",
    "spark.hadoop.fs.AbstractFileSystem.s3a.impl": "org.apache.hadoop.fs.s3a.S3A",
}
"""The settings that make writing safe. A user cannot change them.

Checksums stay as Hadoop has them (`fs.s3a.request.md5.header` is on, `fs.s3a.checksum.generation` is off): those
of AWS's newer SDK are refused by some stores.
"""

_USUAL = {
    # Folders of S3 are parts of names: no request for a marker of an empty folder. Never `create`, with which
    # Hadoop's client overwrites.
    _FLAGS: "delete,mkdir",
    # The files of uploads end with the JVM, whose folder for temporary files is removed.
    "spark.hadoop.fs.s3a.buffer.dir": "${env.LOCAL_DIRS:-${java.io.tmpdir}}/s3a-${user.name}",
}
"""The settings that a user can change."""

_MARGIN = timedelta(minutes=2)
_RETRY_S = 30.0


def build_support(
    accesses: Mapping[str, S3Access], conf: Mapping[str, str], learn: Callable[[str], None]
) -> StorageSupport:
    """Returns what a session needs for the buckets of a pipeline.

    Args:
        accesses: The access of each bucket; that of `ANY_BUCKET` is for the other buckets.
        conf: The Spark settings of the spec.
        learn: Gets each secret before Spark gets it.

    Raises:
        SpecInvalidError: The spec changes a setting that makes writing safe.
    """
    check_settings(conf)
    plugins = [*filter(None, conf.get(_PLUGINS, "").split(",")), f"{_CLASSES}.CredentialsPlugin"]
    reach = {}
    for bucket, access in accesses.items():
        reach |= reach_settings(bucket, access)
    usual = {key: value for key, value in {**_USUAL, **reach}.items() if key not in conf}
    return StorageSupport(
        jar_sets=("s3",),
        own_jars=(_JAR,),
        settings={**usual, **_FENCE, _PLUGINS: ",".join(plugins)},
        required=tuple(_FENCE),
        marker=_LOG_STORE,
        share=partial(share_credentials, accesses),
    )


def reach_settings(bucket: str, access: S3Access) -> dict[str, str]:
    """Returns the settings of Hadoop's client for a bucket; none is secret."""
    prefix = "spark.hadoop.fs.s3a." + ("" if bucket == ANY_BUCKET else f"bucket.{bucket}.")
    found = {
        "aws.credentials.provider": f"{_CLASSES}.SharedCredentials",
        "endpoint": access.endpoint,
        "endpoint.region": access.region,
        "path.style.access": str(access.path_style).lower(),
        "connection.ssl.enabled": str(not access.allows_http).lower(),
    }
    return {prefix + name: value for name, value in found.items() if value is not None}


def check_settings(conf: Mapping[str, str]) -> None:
    """Raises an error for settings with which a second writer would not be noticed."""
    for key, value in conf.items():
        if key in _FENCE and value != _FENCE[key]:
            raise _unsafe(key, value, f"Headrace needs   {key}: {_FENCE[key]}")
        is_flags = key.startswith("spark.hadoop.fs.s3a.") and key.endswith("performance.flags")
        flags = {flag.strip().lower() for flag in value.split(",")} if is_flags else set()
        if flags & {"create", "*"} or (key.endswith("fs.s3a.create.performance") and value.lower() == "true"):
            raise _unsafe(key, value, "with it, a writer replaces the file of another one without an error")


def _unsafe(key: str, value: str, fact: str) -> SpecInvalidError:
    return SpecInvalidError(
        f"the setting `{key}` makes S3 unsafe for several writers",
        facts=(f"its value is   {value}", fact, "nothing was read or written"),
        remedies=(f"remove `{key}` from the spec's `configuration`",),
        params={"key": key, "value": value},
    )


def share_credentials(accesses: Mapping[str, S3Access], spark: SparkSession) -> Callable[[], None]:
    """Gives the driver the credentials of each bucket, and renews those that expire until the result is
    called."""
    renewing = _Renewing(spark, accesses)
    renewing.start()
    return renewing.end


class _Renewing:
    """A thread that gives the driver new credentials before the old ones expire."""

    def __init__(self, spark: SparkSession, accesses: Mapping[str, S3Access]) -> None:
        jvm: Any = spark._jvm
        self._holder: Any = jvm.io.headrace.s3.SharedCredentials
        self._accesses = accesses
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="headrace-s3-credentials", daemon=True)

    def start(self) -> None:
        # In this thread, so that a failure is the command's.
        self._wait_s = self._share()
        if self._wait_s is not None:
            self._thread.start()

    def end(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_RETRY_S)

    def _renew(self) -> None:
        while self._wait_s is not None and not self._ended.wait(self._wait_s):
            try:
                self._wait_s = self._share()
            except Exception:
                # The old ones can still be valid. When they are not, the request of Spark fails with S3's reason.
                self._wait_s = _RETRY_S

    def _share(self) -> float | None:
        """Returns after how many seconds the first credentials are to be renewed."""
        found = {bucket: access.credentials() for bucket, access in self._accesses.items()}
        for bucket, one in found.items():
            self._holder.set(
                bucket, one.access_key_id, one.secret_access_key, one.session_token, _milliseconds(one)
            )
        ends = [one.expires for one in found.values() if one.expires is not None]
        if not ends:
            return None
        return max(_RETRY_S, (min(ends) - datetime.now(UTC) - _MARGIN).total_seconds())


def _milliseconds(credentials: Credentials) -> int | None:
    return None if credentials.expires is None else int(credentials.expires.timestamp() * 1000)
