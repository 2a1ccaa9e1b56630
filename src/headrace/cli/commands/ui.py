"""`headrace ui`: the dashboard in a browser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from headrace.cli.output import Output, Result
from headrace.cli.verb import Invocation, option, verb
from headrace.errors import ArgumentInvalidError
from headrace.model.network import LOOPBACK
from headrace.model.project import ProjectSettings
from headrace.runtime.extras import needing

if TYPE_CHECKING:
    from headrace.dashboard.server import Dashboard


@verb(
    examples=(
        "headrace ui",
        "headrace ui --storage s3://shop-lake/v1 --no-open",
        "headrace ui --pipeline shop --port 8800",
        "headrace ui --host 0.0.0.0 --allowed-host lake.example.org",
    )
)
@option("--pipeline NAME", "Show only this pipeline; default: all pipelines of the storage.", name="only")
@option("--port N", "The port; default: 7117, or the next free one.", click.IntRange(0, 65535))
@option("--host ADDRESS", "Listen on this address of the machine.", default=LOOPBACK)
@option(
    "--allowed-host NAME",
    "Also answer requests for this host, such as that of a proxy; repeatable.",
    name="allowed",
    multiple=True,
)
@option("--no-open", "Do not open a browser.")
def ui(
    invocation: Invocation,
    only: str | None,
    port: int | None,
    host: str,
    allowed: tuple[str, ...],
    no_open: bool,
) -> Result:
    """Show the pipelines of a storage in a browser.

    The figures are those of status, events, quality and verify. It changes nothing, and starts no Spark.
    Prints a link with a token, which opens the dashboard for everybody who has it. It listens on this
    machine only, unless --host names another address. Ctrl-C ends it.
    """
    # A storage that is named needs no pipeline beside it.
    settings = invocation.stored(anywhere=invocation.storage is not None)
    if invocation.storage is not None and not settings.storage.root.entries():
        raise ArgumentInvalidError(
            f"{settings.storage.root} is not a storage: it is not a folder, or it is empty",
            remedies=("name the storage of a run, a folder or a bucket:   headrace ui --storage PATH",),
            params={"argument": "storage", "value": invocation.storage},
        )
    if only is not None:
        _check_pipeline(settings, only)
    dashboard = _open(settings, only, host, port, allowed)
    _announce(invocation.output, dashboard, opens=not no_open)
    dashboard.serve()
    return Result(data=None)


def _check_pipeline(settings: ProjectSettings, name: str) -> None:
    """Raises `ArgumentInvalidError` if neither the storage nor the spec has the pipeline."""
    from headrace.observe.event_table import query_events, sql_text

    column = "origin['pipeline_name']"
    if name == settings.name or query_events(
        settings.storage, f"SELECT id FROM t WHERE {column} = {sql_text(name)} LIMIT 1"
    ):
        return
    found = query_events(settings.storage, f"SELECT DISTINCT {column} AS name FROM t ORDER BY 1")
    known = ", ".join(str(one["name"]) for one in found)
    raise ArgumentInvalidError(
        f"the storage {settings.storage.root} has no pipeline `{name}`",
        facts=(f"its pipelines: {known}" if known else "no pipeline has run in it",),
        remedies=("show all pipelines:   headrace ui",),
        params={"argument": "pipeline", "value": name},
    )


@contextmanager
def beside_run(output: Output, settings: ProjectSettings) -> Iterator[None]:
    """Serve the dashboard while a run goes on."""
    dashboard = _open(settings)
    from headrace.dashboard.server import serving

    if output.is_json:
        output.line({"note": f"dashboard: {dashboard.link}"})
    else:
        _announce(output, dashboard, opens=True)
    with serving(dashboard):
        yield


def _open(
    settings: ProjectSettings,
    only: str | None = None,
    host: str = LOOPBACK,
    port: int | None = None,
    allowed: Sequence[str] = (),
) -> Dashboard:
    """A dashboard that listens; raises `PackageMissingError` without the packages of the extra."""
    with needing("the dashboard", "ui"):
        from headrace.dashboard.server import Address, Dashboard
    return Dashboard(settings, Address(host=host, port=port, allowed=allowed), only)


def _announce(output: Output, dashboard: Dashboard, *, opens: bool) -> None:
    """Print the link, and open it where a person has a browser."""
    from headrace.dashboard.server import open_browser

    address = dashboard.address
    if not address.is_loopback:
        traffic = "without encryption: the token can be read on the network"
        output.note(f"warning: the dashboard listens on {address.host}, {traffic}")
    if output.is_json:
        output.line({"url": dashboard.link})
    else:
        output.note(f"Dashboard  {dashboard.link}")
    if opens and output.is_terminal:
        open_browser(dashboard.link)
