"""What Spark needs for S3: Hadoop's client, our classes that fence a second writer, and credentials."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from headrace.errors import SpecInvalidError
from headrace.model.project import ProjectSettings, S3Settings
from headrace.runtime.lazy_pyspark import SparkSession
from headrace.runtime.storage_support import CHECKPOINT_FILES, NO_STORAGE, StorageSupport
from headrace.storage.layout import S3
from headrace.storage.location import Location
from headrace.storage.s3 import access as s3
from headrace.storage.s3.access import S3Access, S3Files

_LOG = logging.getLogger(__name__)

ANY_BUCKET = "*"
"""The name for the buckets that have no settings of their own."""

JAR = Path(__file__).with_name("headrace-s3.jar")
_CLASSES = "io.headrace.s3"
_LOG_STORE = f"{_CLASSES}.S3LogStore"
_SCHEMES = ("s3", "s3a")

_PLUGINS = "spark.plugins"
_HADOOP = "spark.hadoop."
_FLAGS = "spark.hadoop.fs.s3a.performance.flags"

_FENCE = {
    # Delta's own log stores look first and write then: a second writer replaces the commit of the first.
    **{f"spark.delta.logStore.{scheme}.impl": _LOG_STORE for scheme in _SCHEMES},
    # Delta's kernel has settings of its own.
    **{f"spark.hadoop.io.delta.kernel.logStore.{scheme}.impl": _LOG_STORE for scheme in _SCHEMES},
    # A rename on S3 is a copy and a removal, and neither fences a second driver.
    CHECKPOINT_FILES: f"{_CLASSES}.S3CheckpointFiles",
    # Hadoop knows S3 as `s3a`; users and other engines write `s3`.
    **{f"spark.hadoop.fs.{scheme}.impl": f"{_CLASSES}.S3Files" for scheme in _SCHEMES},
    "spark.hadoop.fs.AbstractFileSystem.s3.impl": "org.apache.hadoop.fs.s3a.S3A",
    "spark.hadoop.fs.AbstractFileSystem.s3a.impl": "org.apache.hadoop.fs.s3a.S3A",
}
"""The settings that make writing safe. A user cannot change them.

Checksums stay as Hadoop has them (`fs.s3a.request.md5.header` is on, `fs.s3a.checksum.generation` is off):
some stores refuse those of AWS's newer SDK.
"""

_USUAL = {
    # Folders of S3 are parts of names: no request for a marker of an empty folder. Never `create`, with which
    # Hadoop's client overwrites.
    _FLAGS: "delete,mkdir",
    # The files of uploads end with the JVM, whose folder for temporary files is removed.
    "spark.hadoop.fs.s3a.buffer.dir": "${env.LOCAL_DIRS:-${java.io.tmpdir}}/s3a-${user.name}",
}
"""The settings that a user can change."""

_UNSAFE = {
    ".performance.flags": {"create", "*"},
    ".create.performance": {"true"},
    ".create.conditional.enabled": {"false"},
}
"""The values of Hadoop's settings, of all buckets or of one, that take the condition from a write."""

_MARGIN = timedelta(minutes=2)
_RETRY_S = 30.0


def find_support(settings: ProjectSettings) -> StorageSupport:
    """Returns what a session needs for a pipeline: `NO_STORAGE` if neither its storage is on S3 nor its spec
    has settings of S3.

    Raises:
        SpecInvalidError: The spec changes a setting that makes writing safe.
    """
    files = settings.storage.root.files
    if isinstance(files, S3Files):
        accesses = {ANY_BUCKET: files.access, files.bucket: files.access}
    elif settings.s3 != S3Settings():
        accesses = {ANY_BUCKET: s3.BUCKETS.access(settings.s3)}
    else:
        return NO_STORAGE
    return build_support(accesses, settings.configuration)


def build_support(accesses: Mapping[str, S3Access], conf: Mapping[str, str]) -> StorageSupport:
    """Returns what a session needs for buckets. The access of `ANY_BUCKET` is for all other buckets."""
    check_settings(conf)
    plugins = [*filter(None, conf.get(_PLUGINS, "").split(",")), f"{_CLASSES}.CredentialsPlugin"]
    reach = [reach_settings(bucket, access) for bucket, access in accesses.items()]
    usual = {key: value for part in (_USUAL, *reach) for key, value in part.items() if key not in conf}
    return StorageSupport(
        jar_sets=("s3",),
        own_jars=(JAR,),
        settings={**usual, **_FENCE, _PLUGINS: ",".join(plugins)},
        required=tuple(key for key in _FENCE if not key.startswith(_HADOOP)),
        marker=_LOG_STORE,
        share=partial(share_credentials, accesses, conf),
        passing=partial(_find_passing, accesses),
    )


def reach_settings(bucket: str, access: S3Access) -> dict[str, str]:
    """Returns the settings of Hadoop's client for a bucket; none is secret."""
    prefix = f"{_HADOOP}fs.s3a." + ("" if bucket == ANY_BUCKET else f"bucket.{bucket}.")
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
        if not key.startswith(f"{_HADOOP}fs.s3a."):
            continue
        values = {part.strip().lower() for part in value.split(",")}
        if any(key.endswith(name) and values & unsafe for name, unsafe in _UNSAFE.items()):
            raise _unsafe(key, value, "with it, a writer replaces the file of another one without an error")


def check_session(session: SparkSession, checkpoint: Location) -> None:
    """Raises an error if a stream's session has another class for the files of checkpoints on S3: code of the
    pipeline can have set it."""
    if checkpoint.files.scheme != S3:
        return
    value = session.conf.get(CHECKPOINT_FILES, None)
    if value != _FENCE[CHECKPOINT_FILES]:
        raise _unsafe(CHECKPOINT_FILES, str(value), f"the checkpoint is {checkpoint}")


def _unsafe(key: str, value: str, fact: str) -> SpecInvalidError:
    return SpecInvalidError(
        f"the setting `{key}` makes S3 unsafe for several writers",
        facts=(f"its value is   {value}", fact, "nothing was read or written"),
        remedies=(f"remove `{key}` from the spec's `configuration`, and from `spark_conf`",),
        params={"key": key, "value": value},
    )


def _find_passing(accesses: Mapping[str, S3Access]) -> list[str]:
    found = [access.credentials() for access in accesses.values()]
    parts = [(one.secret_access_key, one.session_token) for one in found if one.expires is not None]
    return [part for pair in parts for part in pair if part]


def share_credentials(
    accesses: Mapping[str, S3Access], conf: Mapping[str, str], spark: SparkSession, owned: bool
) -> Callable[[], None]:
    """Gives the driver the credentials of each bucket, and renews those that expire until the result is
    called. A session that has begun without these buckets learns how they are reached, but for the settings
    of the user in `conf`. A session of the user (`owned` is false) keeps all settings that it has, and those
    of other buckets than the pipeline's."""
    hadoop: Any = spark.sparkContext._jsc.hadoopConfiguration()
    shared = {bucket: access for bucket, access in accesses.items() if owned or bucket != ANY_BUCKET}
    for bucket, access in shared.items():
        for key, value in reach_settings(bucket, access).items():
            name = key.removeprefix(_HADOOP)
            held = hadoop.get(name)
            # An engine ends if a command changes what its commands share.
            if held != value and key not in conf and (owned or held is None):
                hadoop.set(name, value)
    renewing = _Renewing(spark, shared)
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
            except Exception as error:
                _LOG.warning("the credentials of S3 were not renewed", exc_info=error)
                # The old ones can still be valid. When they are not, Spark's requests fail with S3's reason.
                self._wait_s = _RETRY_S

    def _share(self) -> float | None:
        """Returns after how many seconds the first credentials are to be renewed."""
        found = {bucket: access.credentials() for bucket, access in self._accesses.items()}
        for bucket, one in found.items():
            ends_ms = None if one.expires is None else int(one.expires.timestamp() * 1000)
            self._holder.set(bucket, one.access_key_id, one.secret_access_key, one.session_token, ends_ms)
        ends = [one.expires for one in found.values() if one.expires is not None]
        if not ends:
            return None
        return max(_RETRY_S, (min(ends) - datetime.now(UTC) - _MARGIN).total_seconds())
