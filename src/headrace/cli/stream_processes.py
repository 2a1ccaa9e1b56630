"""The processes of streams that `headrace sql` starts."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

from headrace.cli.output import Result
from headrace.errors import StreamNotStartedError

if TYPE_CHECKING:
    from headrace.cli.verb import Invocation
    from headrace.shell.definitions import Definitions

_START_S = 60.0
_POLL_S = 0.05
_STOPPED = (130, 143)
"""The exit codes of a stream that a signal has stopped, as `STOP STREAM` does."""
_TAIL = 15
"""Lines of a log that an error shows."""


class StreamProcesses:
    """Starts a process for each stream.

    Args:
        once: Whether the streams end after the records that exist now.
    """

    def __init__(
        self, invocation: Invocation, definitions: Definitions, *, detached: bool, once: bool
    ) -> None:
        self._invocation = invocation
        self._definitions = definitions
        self.detached = detached
        self._once = once
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> int:
        """Start the process of a stream; returns its process id.

        Raises:
            StreamNotStartedError: The process ended at once.
        """
        from headrace.runtime.processes import start_bound, start_detached
        from headrace.shell.shell import Streams

        log = self._definitions.log(name)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        command = [sys.executable, "-m", "headrace", "sql", "--stream", name, *self._options()]
        if self.detached:
            pid = start_detached(command, log)
        else:
            self._running[name] = start_bound(command, log)
            pid = self._running[name].pid
        streams, deadline = Streams(self._definitions), time.monotonic() + _START_S
        while streams.driver(name) is None and time.monotonic() < deadline:
            if not self._lives(name, pid):
                if self._ended_well(name):
                    break
                raise self._failure(name)
            time.sleep(_POLL_S)
        return pid

    @property
    def running(self) -> list[str]:
        """The streams whose processes end with this one."""
        return [name for name, process in self._running.items() if process.poll() is None]

    def wait(self) -> Result:
        """Wait until all processes have ended that end with this one."""
        codes = {name: process.wait() for name, process in self._running.items()}
        failed = [name for name, code in codes.items() if code not in (0, *_STOPPED)]
        errors = [self._failure(name) for name in failed]
        self._running.clear()
        data = None if not errors else {"errors": [error.to_dict() for error in errors]}
        return Result(data=data, errors=errors, exit_code=1 if errors else 0)

    def close(self) -> None:
        """Stop the processes that end with this one, each after its batch."""
        from headrace.shell.shell import Streams

        streams = Streams(self._definitions)
        for name in self.running:
            streams.stop(name)

    def _ended_well(self, name: str) -> bool:
        process = self._running.get(name)
        return process is not None and process.poll() == 0

    def _lives(self, name: str, pid: int) -> bool:
        from headrace.shell.shell import lives

        process = self._running.get(name)
        return lives(pid) if process is None else process.poll() is None

    def _failure(self, name: str) -> StreamNotStartedError:
        log = self._definitions.log(name)
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
        return StreamNotStartedError(
            f"the stream `{name}` failed",
            facts=[*lines[-_TAIL:], f"log: {log}"],
            remedies=[f'headrace sql -e "DESCRIBE STREAM {name}"'],
            params={"stream": name, "log": str(log)},
        )

    def _options(self) -> list[str]:
        """The options that name the same pipeline."""
        invocation = self._invocation
        given = {"--project": invocation.project, "--profile": invocation.profile}
        options = [part for name, value in given.items() if value is not None for part in (name, str(value))]
        options += [f"--set={key}={value}" for key, value in invocation.overrides.items()]
        return [*options, *(["--once"] if self._once else [])]
