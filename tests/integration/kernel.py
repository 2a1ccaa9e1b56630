"""A real Jupyter kernel, cell by cell."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

CELL_S = 240.0
"""A cell may start Spark, on a machine that others use too."""


@dataclass
class Cell:
    """What a cell has given."""

    stdout: str = ""
    stderr: str = ""
    html: str = ""
    result: str | None = None
    error: str | None = None
    trace: list[str] = field(default_factory=list)


class Kernel:
    """A kernel in a process of its own, working in a folder."""

    def __init__(self, folder: Path) -> None:
        self._manager = KernelManager()
        self._manager.start_kernel(cwd=str(folder))
        self._client: BlockingKernelClient = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=CELL_S)

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()

    def run(self, code: str) -> Cell:
        """Run a cell to its end."""
        return self.end(self.start(code))

    def start(self, code: str) -> str:
        """Begin a cell; `end` waits for it."""
        return str(self._client.execute(code))

    def interrupt(self) -> None:
        """What the button with the square does."""
        self._manager.interrupt_kernel()

    def end(self, cell: str) -> Cell:
        found = Cell()
        deadline = time.monotonic() + CELL_S
        while time.monotonic() < deadline:
            message: dict[str, Any] = self._client.get_iopub_msg(timeout=CELL_S)
            if message["parent_header"].get("msg_id") != cell:
                continue
            content = message["content"]
            match message["msg_type"]:
                case "stream":
                    name = content["name"]
                    setattr(found, name, getattr(found, name) + content["text"])
                case "display_data" | "update_display_data":
                    found.html = content["data"]["text/html"]
                case "execute_result":
                    found.result = content["data"]["text/plain"]
                case "error":
                    found.error, found.trace = content["ename"], content["traceback"]
                case "status" if content["execution_state"] == "idle":
                    return found
        raise AssertionError(f"the cell never ended: {found}")
