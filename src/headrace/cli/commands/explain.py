"""`headrace explain`: the page of an error code."""

from __future__ import annotations

import difflib
from dataclasses import asdict

import click
from click.shell_completion import CompletionItem

from headrace.cli.output import Result
from headrace.cli.verb import Invocation, verb
from headrace.errors import CommandLineError, ErrorPage, build_pages


def complete_code(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The codes that start with the typed text."""
    return [CompletionItem(code) for code in build_pages() if code.startswith(incomplete.upper())]


@verb(examples=("headrace explain TOPIC_RECREATED", "headrace explain --json SECOND_DRIVER"), project=False)
@click.argument("code", shell_complete=complete_code)
def command(invocation: Invocation, code: str) -> Result:
    """Explain an error code.

    Prints what the error means and what to do about it.
    """
    pages = build_pages()
    page = pages.get(code.strip("[]").upper().replace("-", "_"))
    if page is None:
        raise _unknown(code, list(pages))
    return Result(data=asdict(page), text=_rendered(page))


def _rendered(page: ErrorPage) -> str:
    traits = f"exit code {page.exit_code}" + (", repeated with backoff" if page.transient else "")
    return f"{click.style(page.code, bold=True)}\n\n{page.text}\n\n{traits}"


def _unknown(code: str, known: list[str]) -> CommandLineError:
    near = difflib.get_close_matches(code.upper(), known, n=3, cutoff=0.5)
    near = near or [one for one in known if code.upper() in one][:3]
    return CommandLineError(
        f"there is no error code `{code}`",
        remedies=[f"did you mean {', '.join(near)}?"]
        if near
        else ["an error prints its code in brackets: error[CODE]"],
        params={"code": code, "possibilities": near},
    )
