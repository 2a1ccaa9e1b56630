"""`headrace ui`: the dashboard in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from headrace.cli.output import Output, Result
from headrace.cli.verb import Invocation, option, verb
from headrace.errors import PackageMissingError
from headrace.model.project import ProjectSettings

if TYPE_CHECKING:
    from headrace.dashboard.server import Address, Dashboard

EXTRA = 'pip install "headrace[ui]"'


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
@option("--host ADDRESS", "Listen on this address of the machine.", default="127.0.0.1")
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

    Reads what status, events, quality and verify read; changes nothing, and starts no Spark. Prints a link
    with a token; whoever has the link sees the dashboard. It listens on this machine only, unless --host
    names another address. Ctrl-C ends it.
    """
    address_of = require_dashboard()
    address = address_of(host=host, port=port, allowed=allowed)
    dashboard = open_dashboard(invocation.stored(anywhere=True), address, only)
    announce(invocation.output, dashboard, opens=not no_open)
    dashboard.serve()
    return Result(data=None)


def require_dashboard() -> type[Address]:
    """The class of addresses; raises `PackageMissingError` if the extra is not installed."""
    try:
        import jinja2  # noqa: F401 - all of them are needed
        import sse_starlette  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise PackageMissingError(
            f"the dashboard needs the Python package `{error.name}`, which is not installed",
            facts=("the extra headrace[ui] has all packages of the dashboard",),
            remedies=(f"install them:   {EXTRA}",),
            params={"package": error.name},
        ) from error
    from headrace.dashboard.server import Address

    return Address


def open_dashboard(settings: ProjectSettings, address: Address, only: str | None = None) -> Dashboard:
    from headrace.dashboard.server import Dashboard

    return Dashboard(settings, address, only)


def announce(output: Output, dashboard: Dashboard, *, opens: bool) -> None:
    """Print the link, and open it where a person has a browser."""
    from headrace.dashboard.server import open_browser

    if not dashboard.address.is_loopback:
        output.note(
            f"warning: the dashboard listens on {dashboard.address.host}, without encryption: whoever sees "
            "the traffic sees the token"
        )
    if output.is_json:
        output.line({"url": dashboard.link})
    else:
        output.note(f"Dashboard  {dashboard.link}")
    if opens and output.is_terminal:
        open_browser(dashboard.link)


@contextmanager
def beside_run(output: Output, settings: ProjectSettings) -> Iterator[None]:
    """Serve the dashboard while a run goes on."""
    address_of = require_dashboard()
    from headrace.dashboard.server import serving

    dashboard = open_dashboard(settings, address_of())
    if output.is_json:
        output.line({"note": f"dashboard: {dashboard.link}"})
    else:
        announce(output, dashboard, opens=True)
    with serving(dashboard):
        yield
