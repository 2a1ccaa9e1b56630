"""`headrace broker`: the embedded Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from headrace.cli.kafka import start_broker
from headrace.cli.output import UNCHANGED, Result
from headrace.cli.verb import POSITIVE, Invocation, VerbGroup, option, verb
from headrace.declare.spec import find_spec
from headrace.errors import HeadraceError, ProfileUnknownError, SpecAmbiguousError, SpecNotFoundError
from headrace.model.project import BrokerChoice
from headrace.model.texts import counted
from headrace.runtime.broker import Broker, BrokerStatus, topic_unknown
from headrace.runtime.broker_record import find_in_shared, has_data
from headrace.runtime.fetch import ensure_jars
from headrace.runtime.places import BROKER_VARIABLE, chosen_folder


@click.group(
    "broker", cls=VerbGroup, examples=("headrace broker start", "headrace broker topics create sales")
)
def broker() -> None:
    """Manage the embedded Kafka broker of a pipeline.

    A real Apache Kafka broker with one node. Each pipeline has its own, with its data in .headrace/broker
    beside the spec. A command that needs the broker starts it. The broker ends after 30 minutes without
    clients (HEADRACE_BROKER_IDLE=MINUTES; 0: never), and keeps its data. Outside of a pipeline, the commands
    use a shared broker in the data folder of the user.
    """


@broker.group(
    cls=VerbGroup,
    examples=("headrace broker topics create sales --partitions 4", "headrace broker topics list"),
)
def topics() -> None:
    """Create, list and delete topics of the embedded broker."""


@verb(group=broker, examples=("headrace broker start", "headrace broker start --port 9092"))
@option(
    "--port", "The port for clients; default: the last one used, or a free one.", click.IntRange(1, 65535)
)
def start(invocation: Invocation, port: int | None) -> Result:
    """Start the broker if it is stopped, and print its address."""
    choice = choose(invocation)
    ensure_jars("broker")
    broker = Broker(choice.folder, port=port)
    with invocation.output.progress("Starting the broker"):
        broker.start()
    return _shown(broker.status(), choice)


@verb(group=broker, examples=("headrace broker stop", "headrace broker stop --json"))
def stop(invocation: Invocation) -> Result:
    """Stop the broker; its topics and records are kept."""
    choice = choose(invocation)
    broker = Broker(choice.folder)
    with invocation.output.progress("Stopping the broker"):
        was_running = broker.stop()
    name = choice.describe()
    text = (
        f"Stopped {name}. The records are kept in {broker.directory}"
        if was_running
        else f"{name[0].upper()}{name[1:]} was not running: {broker.directory}"
    )
    return Result(data={"was_running": was_running, "path": str(broker.directory)}, text=text)


@verb(group=broker, examples=("headrace broker status", "headrace broker status --json"))
def status(invocation: Invocation) -> Result:
    """Show whether the broker runs, its address and its data folder."""
    choice = choose(invocation)
    return _shown(Broker(choice.folder).status(), choice)


@verb(
    group=topics,
    examples=(
        "headrace broker topics create sales --partitions 4",
        "headrace broker topics create orders --config retention.ms=3600000",
    ),
)
@click.argument("name", metavar="TOPIC")
@option("--partitions", "The number of partitions.", POSITIVE, default=1)
@option("--config NAME=VALUE", "A topic setting, such as retention.ms=3600000.", multiple=True)
def create(invocation: Invocation, name: str, partitions: int, config: tuple[str, ...]) -> Result:
    """Create a topic; starts the broker if it is stopped."""
    settings = _read_settings(config)
    broker, choice, bootstrap = _started(invocation)
    broker.create_topic(name, partitions, settings)
    facts, remedies = find_in_shared([name], choice.folder)
    for line in (*facts, *remedies):
        invocation.output.note(line)
    text = f"Created topic {name} with {counted(partitions, 'partition')} on {bootstrap}, {choice.describe()}"
    data = {"topic": name, "partitions": partitions, "config": settings, "bootstrap_servers": bootstrap}
    return Result(data=data, text=text)


@verb(
    group=topics, name="list", examples=("headrace broker topics list", "headrace broker topics list --json")
)
def list_topics(invocation: Invocation) -> Result:
    """List the topics with their partitions and records; starts the broker if it is stopped."""
    choice = choose(invocation)
    # A broker that was never started has no topics.
    found = _started(invocation, choice)[0].list_topics() if has_data(choice.folder) else ()
    head = f"{choice.describe()}: {choice.folder}"
    data = {
        "topics": [
            {"topic": one.name, "id": one.id, "partitions": one.partitions, "records": one.records}
            for one in found
        ]
    }
    if not found:
        text = f"No topics. Create one: headrace broker topics create NAME\n{head}"
        return Result(data=data, text=text)
    width = max(len("topic"), *(len(one.name) for one in found))
    lines = [f"{'topic':<{width}}  partitions     records"]
    lines += [f"{one.name:<{width}}  {one.partitions:>10}  {one.records:>10,}" for one in found]
    return Result(data=data, text="\n".join([*lines, head]))


@verb(
    group=topics,
    examples=("headrace broker topics delete sales", "headrace broker topics delete sales --yes"),
)
@click.argument("name", metavar="TOPIC")
@option("--yes", "Do not ask for confirmation.")
def delete(invocation: Invocation, name: str, yes: bool) -> Result:
    """Delete a topic with its records; starts the broker if it is stopped.

    The command first shows how many records the topic has, and asks for confirmation. The rows that flows
    have read from it stay in their tables.
    """
    choice = choose(invocation)
    if not has_data(choice.folder):
        raise topic_unknown(name, ())
    broker = _started(invocation, choice)[0]
    found = broker.find_topic(name)
    size = f"{counted(found.partitions, 'partition')} and {counted(found.records, 'record')}"
    lines = [f"topic {name} with {size}", f"{choice.describe()}: {choice.folder}"]
    remedy = f"headrace broker topics delete {name} --yes"
    if not (yes or invocation.output.agrees(lines, "Delete?", remedy)):
        return UNCHANGED
    broker.delete_topic(name)
    data = {
        "done": True,
        "topic": name,
        "id": found.id,
        "partitions": found.partitions,
        "records": found.records,
    }
    return Result(data=data, text=f"Deleted topic {name} with {size}.")


def _started(invocation: Invocation, choice: BrokerChoice | None = None) -> tuple[Broker, BrokerChoice, str]:
    choice = choice or choose(invocation)
    broker = Broker(choice.folder)
    return broker, choice, start_broker(broker, invocation.output)


def choose(invocation: Invocation) -> BrokerChoice:
    """The broker of the pipeline; outside of pipelines, the shared one."""
    try:
        found = invocation.settings(anywhere=True).broker
        assert found is not None
        return found
    except (SpecNotFoundError, SpecAmbiguousError, ProfileUnknownError):
        raise
    except HeadraceError as error:
        if (named := chosen_folder(BROKER_VARIABLE)) is not None:
            return BrokerChoice(named, "variable", find_spec(invocation.project).parent.name)
        fact = "the folder of the pipeline's broker is not known; nothing was done"
        remedy = "or name the folder of the broker:   HEADRACE_BROKER_DIR=FOLDER headrace broker .."
        raise error.with_(facts=[*error.facts, fact], remedies=[*error.remedies, remedy]) from error


def _read_settings(config: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for text in config:
        name, separator, value = text.partition("=")
        if not (name and separator):
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--config")
        settings[name] = value
    return settings


def _shown(found: BrokerStatus, choice: BrokerChoice) -> Result:
    facts: dict[str, Any] = {
        "pipeline": choice.pipeline if choice.reason in ("pipeline", "spec") else None,
        "state": found.state,
        "bootstrap_servers": found.bootstrap,
        "pid": found.pid,
        "memory_mb": found.memory_mb,
        "idle_minutes": found.idle_minutes,
        "path": found.directory,
        "log": found.log_file,
    }
    if found.state == "stopped":
        text = f"stopped    headrace broker start\ndata in {found.directory}"
    else:
        memory = f", {found.memory_mb} MB" if found.memory_mb else ""
        idle = f"    ends after {found.idle_minutes:g} minutes without clients" if found.idle_minutes else ""
        text = (
            f"{found.state} on {found.bootstrap}    process {found.pid}{memory}{idle}\n"
            f"data in {found.directory}    log {found.log_file}"
        )
    text = f"{choice.describe()}: {text}"
    data = {key: str(value) if isinstance(value, Path) else value for key, value in facts.items()}
    return Result(data=data, text=text)
