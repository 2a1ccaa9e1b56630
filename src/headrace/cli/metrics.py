"""Metrics of a run, served beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.cli.output import Output
from headrace.model.event_forms import Emitter, Event
from headrace.model.network import is_loopback
from headrace.model.project import ProjectSettings
from headrace.runtime.extras import needing


@contextmanager
def serving_metrics(output: Output, settings: ProjectSettings, address: str | None) -> Iterator[Emitter]:
    """Serve the metrics of a run at an address; yields what counts its events. Without an address, nothing is
    counted."""
    if address is None:
        yield lambda event: None
        return
    with needing("`--metrics`", "metrics"):
        from headrace.telemetry.metrics import Metrics
    from headrace.project.pipeline import Pipeline
    from headrace.telemetry.exposition import MetricsAddress, MetricsServer, own_memory

    with Pipeline(settings) as pipeline:
        metrics = Metrics(lambda: [pipeline.status()], own_memory)
        server = MetricsServer(metrics, MetricsAddress.parse(address), settings.metrics_token)

        def count(event: Event) -> None:
            metrics.observe(settings.name, event)

        if not is_loopback(server.address.host) and settings.metrics_token is None:
            output.note(f"warning: everybody who reaches {server.url} can read the names of tables and flows")
        output.line({"note": f"metrics: {server.url}"})
        output.note(f"Metrics  {server.url}")
        with server.serving():
            yield count
