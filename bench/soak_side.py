"""Runs `headrace` for the soak: it does each minute what it otherwise does each hour or day.

The arguments are those of ``headrace``. Only times and numbers of the product's own care are changed.
"""

from __future__ import annotations

from typing import Any

from headrace.cli.main import main
from headrace.maintain import scheduler
from headrace.observe import event_log, event_table
from headrace.run import flow
from headrace.sinks.delta import tombstones
from headrace.sinks.delta.compaction import LogCheckpointer


def hasten() -> None:
    """Shorten the times between maintenance steps."""
    # A run never vacuums with a retention below an hour.
    _set(scheduler, MIN_RETENTION_DURING_RUNS_S=60.0)
    # The ledger records commits every ten minutes; the log keeps commits until they are recorded.
    _set(flow, _FOLD_S=60.0)
    _set(event_table, FOLD_FILES=20, _GRACE_H=0, _PROPERTIES={**event_table._PROPERTIES, **_SHORT})
    _set(event_log, FOLD_FILES=20)
    _set(tombstones, _MANY_FILES=8)
    # A log is shortened only up to its last checkpoint, so checkpoints are written every 10 commits.
    LogCheckpointer.__init__.__defaults__ = (10,)


_SHORT = {"delta.logRetentionDuration": "interval 120 seconds"}


def _set(module: Any, **values: Any) -> None:
    for name, value in values.items():
        if not hasattr(module, name):
            raise AttributeError(f"{module.__name__} has no {name} any more")
        setattr(module, name, value)


if __name__ == "__main__":
    hasten()
    main()
