"""`headrace broker`: the embedded Kafka."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from headrace.cli.options import POSITIVE, option
from headrace.cli.output import Result
from headrace.cli.verb import Invocation, VerbGroup, verb
from headrace.model.texts import counted
from headrace.runtime.broker import Broker, BrokerStatus
from headrace.runtime.fetch import ensure_jars


@click.group(
    "broker", cls=VerbGroup, examples=("headrace broker start", "headrace broker topics create sales")
)
def broker() -> None:
    """Manage the embedded Kafka broker.

    A real Apache Kafka broker with one node. A command that needs the broker starts it. The broker
    keeps running, with its data, until `headrace broker stop`.
    """


@broker.group(
    cls=VerbGroup,
    examples=("headrace broker topics create sales --partitions 4", "headrace broker topics list"),
)
def topics() -> None:
    """Create and list topics of the embedded broker."""


@verb(group=broker, examples=("headrace broker start", "headrace broker start --port 9092"), project=False)
@option(
    "--port", "The port for clients; default: the last one used, or a free one.", click.IntRange(1, 65535)
)
def start(invocation: Invocation, port: int | None) -> Result:
    """Start the broker if it is stopped, and print its address."""
    ensure_jars("broker")
    broker = Broker(port=port)
    with invocation.output.progress("Starting the broker"):
        broker.start()
    return _shown(broker.status())


@verb(group=broker, examples=("headrace broker stop", "headrace broker stop --json"), project=False)
def stop(invocation: Invocation) -> Result:
    """Stop the broker; its topics and records are kept."""
    broker = Broker()
    with invocation.output.progress("Stopping the broker"):
        was_running = broker.stop()
    text = (
        f"Stopped. The records are kept in {broker.directory}"
        if was_running
        else "The broker was not running."
    )
    return Result(data={"was_running": was_running, "path": str(broker.directory)}, text=text)


@verb(group=broker, examples=("headrace broker status", "headrace broker status --json"), project=False)
def status(invocation: Invocation) -> Result:
    """Show whether the broker runs, its address and its data folder."""
    return _shown(Broker().status())


@verb(
    group=topics,
    examples=(
        "headrace broker topics create sales --partitions 4",
        "headrace broker topics create orders --config retention.ms=3600000",
    ),
    project=False,
)
@click.argument("name", metavar="TOPIC")
@option("--partitions", "The number of partitions.", POSITIVE, default=1)
@option("--config NAME=VALUE", "A topic setting, such as retention.ms=3600000.", multiple=True)
def create(invocation: Invocation, name: str, partitions: int, config: tuple[str, ...]) -> Result:
    """Create a topic; starts the broker if it is stopped."""
    settings = _read_settings(config)
    ensure_jars("broker")
    broker = Broker()
    with invocation.output.progress("Starting the broker"):
        bootstrap = broker.start()
    broker.create_topic(name, partitions, settings)
    text = f"Created topic {name} with {counted(partitions, 'partition')}"
    data = {"topic": name, "partitions": partitions, "config": settings, "bootstrap_servers": bootstrap}
    return Result(data=data, text=f"{text} on {bootstrap}")


@verb(
    group=topics,
    name="list",
    examples=("headrace broker topics list", "headrace broker topics list --json"),
    project=False,
)
def list_topics(invocation: Invocation) -> Result:
    """List the topics with their partitions and records."""
    found = Broker().list_topics()
    data = {
        "topics": [
            {"topic": one.name, "id": one.id, "partitions": one.partitions, "records": one.records}
            for one in found
        ]
    }
    if not found:
        return Result(data=data, text="No topics. Create one: headrace broker topics create NAME")
    width = max(len("topic"), *(len(one.name) for one in found))
    lines = [f"{'topic':<{width}}  partitions     records"]
    lines += [f"{one.name:<{width}}  {one.partitions:>10}  {one.records:>10,}" for one in found]
    return Result(data=data, text="\n".join(lines))


def _read_settings(config: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for text in config:
        name, separator, value = text.partition("=")
        if not (name and separator):
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--config")
        settings[name] = value
    return settings


def _shown(found: BrokerStatus) -> Result:
    facts: dict[str, Any] = {
        "state": found.state,
        "bootstrap_servers": found.bootstrap,
        "pid": found.pid,
        "memory_mb": found.memory_mb,
        "path": found.directory,
        "log": found.log_file,
    }
    if found.state == "stopped":
        text = f"stopped    headrace broker start    data in {found.directory}"
    else:
        memory = f", {found.memory_mb} MB" if found.memory_mb else ""
        text = (
            f"{found.state} on {found.bootstrap}    process {found.pid}{memory}\n"
            f"data in {found.directory}    log {found.log_file}"
        )
    data = {key: str(value) if isinstance(value, Path) else value for key, value in facts.items()}
    return Result(data=data, text=text)
