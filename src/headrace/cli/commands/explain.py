"""`headrace explain` and `completion`: error codes, and the completion of commands in a shell."""

from __future__ import annotations

import difflib
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

import headrace
from headrace.cli.output import Result
from headrace.cli.verb import Invocation, verb
from headrace.errors import CommandLineError, HeadraceError

_PACKAGE = Path(headrace.__file__).parent
_TRAITS = re.compile(r"\n\*exit code .*\*\n*\Z")
"""The last line of a section, which is made from the class of the error."""


@dataclass(frozen=True)
class ErrorPage:
    code: str
    text: str
    exit_code: int
    transient: bool  # whether the work that failed is repeated with backoff


def build_pages() -> dict[str, ErrorPage]:
    """The pages of all codes, in alphabetical order: the sections of errors.md."""
    sections = _page_file().read_text(encoding="utf-8").split("\n## ")[1:]
    texts = {
        code: _TRAITS.sub("", text).strip() for code, _, text in (one.partition("\n") for one in sections)
    }
    return {
        error.code: ErrorPage(error.code, texts[error.code], error.exit_code, error.transient)
        for error in sorted(_errors_below(HeadraceError), key=lambda error: error.code)
    }


def _page_file() -> Path:
    """errors.md: in an installed package with its modules, in a checkout with the other pages."""
    installed = _PACKAGE / "errors.md"
    return installed if installed.is_file() else _PACKAGE.parents[1] / "docs" / "errors.md"


def _errors_below(error: type[HeadraceError]) -> list[type[HeadraceError]]:
    return [one for child in error.__subclasses__() for one in (child, *_errors_below(child))]


def complete_code(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(code) for code in build_pages() if code.startswith(incomplete.upper())]


@verb(examples=("headrace explain TOPIC_RECREATED", "headrace explain --json SECOND_DRIVER"), project=False)
@click.argument("code", shell_complete=complete_code)
def explain(invocation: Invocation, code: str) -> Result:
    """Explain an error code.

    Prints what the error means and what to do about it.
    """
    pages = build_pages()
    page = pages.get(code.strip("[]").upper().replace("-", "_"))
    if page is None:
        raise _unknown(code, list(pages))
    traits = f"exit code {page.exit_code}" + (", repeated with backoff" if page.transient else "")
    return Result(data=asdict(page), text=f"{click.style(page.code, bold=True)}\n\n{page.text}\n\n{traits}")


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


@verb(examples=("headrace completion bash", "headrace completion fish | source"), project=False)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(invocation: Invocation, shell: str) -> Result:
    """Print the script that completes commands in a shell.

    Completes commands, options, datasets, profiles and error codes; starts no Spark. To switch it
    on, add a line to the start-up file of the shell:

    \b
      ~/.bashrc                   eval "$(headrace completion bash)"
      ~/.zshrc                    eval "$(headrace completion zsh)"
      ~/.config/fish/config.fish  headrace completion fish | source
    """
    from headrace.cli.main import headrace

    completion = get_completion_class(shell)
    assert completion is not None
    script = completion(headrace, {}, "headrace", "_HEADRACE_COMPLETE").source()
    return Result(data={"shell": shell, "script": script}, text=script)
