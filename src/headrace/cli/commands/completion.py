"""`headrace completion`: the script that completes commands in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from headrace.cli.output import Result
from headrace.cli.verb import Invocation, verb


@verb(examples=("headrace completion bash", "headrace completion fish | source"), project=False)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(invocation: Invocation, shell: str) -> Result:
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
