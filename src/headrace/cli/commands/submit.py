"""`headrace submit`: run a pipeline with Spark's own `spark-submit`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from headrace.cli.main import load_command
from headrace.cli.output import Result
from headrace.cli.verb import Invocation, option, refuse, verb

if TYPE_CHECKING:
    from headrace.runtime.submit import DeployMode, Submission

_MODES = ("client", "cluster")


@verb(
    examples=(
        "headrace submit --profile prod",
        "headrace submit --profile prod --continuous",
        "headrace submit orders --profile prod --print",
        "headrace submit --profile prod --deploy-mode cluster --print",
    )
)
@option("--print", "Print the command; do not run it.", name="shown")
@option(
    "--deploy-mode MODE",
    "Where the driver runs: client, on this machine; cluster, in the cluster (YARN and Kubernetes only).",
    click.Choice(_MODES),
    default="client",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[RUN_ARGUMENT]..")
def submit(
    invocation: Invocation, shown: bool, deploy_mode: DeployMode, arguments: tuple[str, ...]
) -> Result:
    """Run the pipeline with Spark's spark-submit.

    Takes the arguments of `headrace run`. The command has the settings of the pipeline, the jars of Delta
    Lake and Kafka, and the Python of this environment. It uses the Spark of SPARK_HOME, else that of PySpark.
    The exit code is that of the run.
    """
    from headrace.project.deploying import plan_submission
    from headrace.runtime.submit import submit as run_submission

    refuse(
        (
            "--json" in arguments or (invocation.output.is_json and not shown),
            "--json works with --print only; the run prints its own output",
            "headrace submit --print --json",
        )
    )
    # Refuses unknown options now, and not after Spark has started.
    load_command("run").make_context("headrace run", list(arguments), resilient_parsing=False)
    settings = invocation.settings()
    given = [word for key, value in invocation.set.items() for word in ("--set", f"{key}={value}")]
    if invocation.storage is not None:
        given += ["--storage", invocation.overrides["storage"]]
    submission = plan_submission(settings, deploy_mode, [*given, *arguments])
    if shown:
        return _shown(submission)
    return Result(data=None, exit_code=run_submission(submission))


submit.context_settings = {**submit.context_settings, "ignore_unknown_options": True}


def _shown(submission: Submission) -> Result:
    command = ["spark-submit", *submission.command()]
    starts = {index for index, word in enumerate(command) if word.startswith("--")}
    starts.add(command.index(submission.main))
    words = (
        f"\\\n  {shlex.quote(word)}" if i in starts else shlex.quote(word) for i, word in enumerate(command)
    )
    lines = [" ".join(words)]
    if submission.secret:
        lines += [
            "",
            f"# without {', '.join(submission.secret)}: write secret settings into a file that only you can",
            "# read, and add   --properties-file FILE --load-spark-defaults",
        ]
    data = {"command": command, "secret_settings": list(submission.secret)}
    return Result(data=data, text="\n".join(lines))
