"""Plans again if the schema registry does not answer while a run is planned."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from headrace.errors import SchemaRegistryUnreachableError
from headrace.run.stop import StopSignal

_LOG = logging.getLogger(__name__)
_WAITS_S = (1.0, 2.0, 4.0, 8.0)
PlanT = TypeVar("PlanT")


def plan_with_retries(plan: Callable[[], PlanT], stop: StopSignal | None) -> PlanT:
    """Plan a run; a query that reads Avro asks the schema registry for its columns.

    Raises:
        SchemaRegistryUnreachableError: The registry has not answered at any attempt.
    """
    signal = stop or StopSignal()
    for wait_s in _WAITS_S:
        try:
            return plan()
        except SchemaRegistryUnreachableError as error:
            _LOG.warning("%s; planning again in %.0f s", error.summary, wait_s)
            if signal.wait(wait_s):
                raise
    return plan()
