"""The event log as the view `event_log` of a pipeline's session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.model.event_columns import event_columns
from headrace.runtime.active_session import new_frame
from headrace.storage.layout import Storage
from headrace.storage.table_log import is_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENT_LOG = "event_log"
_MARK = "headrace_event_log"
"""An alias in the plan of the view, which tells it from a view that the user's code has made."""


def open_event_log(session: SparkSession, view: Any, storage: Storage) -> None:
    """Create the view over the event log, unless the user's code has made a view of this name.

    The view is created again at each read: the table may have been created since the last one.

    Args:
        view: The view of this name that the session has, as Spark's ``Option``.
    """
    from pyspark.sql.types import StructType

    if view.isDefined() and _MARK not in str(view.get().toString()):
        return
    if is_table(storage.events):
        frame = session.read.format("delta").load(str(storage.events))
    else:
        frame = new_frame(session, [], StructType.fromJson(event_columns()))
    frame.alias(_MARK).createOrReplaceTempView(EVENT_LOG)
