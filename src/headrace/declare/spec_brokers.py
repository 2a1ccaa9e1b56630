"""The connections that `kafka.brokers` gives the addresses in a pipeline's files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from headrace.declare.spec_checks import check_kafka
from headrace.declare.spec_model import BROKERS, KafkaSpec
from headrace.declare.spec_values import Filler, Mapped
from headrace.errors import SourceLocation, SpecInvalidError, did_you_mean
from headrace.model.broker_map import BrokerMap, split_addresses
from headrace.model.kafka_settings import EMBEDDED, KafkaConnection


def kafka_of(merged: Mapped) -> Mapped:
    """The settings under `kafka`, without the mapping of addresses."""
    entry = merged.items.get("kafka")
    if not isinstance(entry, Mapped):
        return Mapped({})
    return Mapped({k: v for k, v in entry.items.items() if k != BROKERS}, entry.keys, entry.location)


def broker_locations(merged: Mapped) -> Mapping[str, SourceLocation]:
    entry = merged.items.get("kafka")
    brokers = entry.items.get(BROKERS) if isinstance(entry, Mapped) else None
    return brokers.keys if isinstance(brokers, Mapped) else {}


def build_brokers(
    targets: Mapping[str, str],
    *,
    chosen: str,
    profiles: Mapping[str, Callable[[], Mapped]],
    filler: Filler,
    folder: Path,
    locations: Mapping[str, SourceLocation],
) -> BrokerMap:
    """The addresses and their connections. `profiles`: the merged spec of each profile."""
    connections: dict[str, KafkaConnection | None] = {}
    for pattern, name in targets.items():
        if not list(split_addresses(pattern)):
            raise _invalid(pattern, "names no address", ["write such as broker.example:9092"], locations)
        if name in connections:
            continue
        if name in (EMBEDDED, chosen):
            connections[name] = None
        elif name in profiles:
            found = _connection(profiles[name](), filler, folder)
            if found.is_embedded or not found.bootstrap_servers:
                problem = f"names the profile `{name}`, which has no broker of its own"
                remedy = f"add to the profile:   {name}: {{kafka: {{bootstrap.servers: HOST:PORT}}}}"
                raise _invalid(pattern, problem, [remedy, f"or write {EMBEDDED}"], locations)
            connections[name] = found
        else:
            known = [EMBEDDED, *profiles]
            problem = f"is `{name}`, which is neither `{EMBEDDED}` nor a profile of the spec"
            remedy = f"add a profile:   profiles: {{{name}: {{kafka: {{bootstrap.servers: HOST:PORT}}}}}}"
            raise _invalid(pattern, problem, did_you_mean(name, known) or (remedy,), locations)
    return BrokerMap(dict(targets), connections)


def _connection(merged: Mapped, filler: Filler, folder: Path) -> KafkaConnection:
    kafka = kafka_of(merged)
    settings = KafkaSpec.model_validate(filler.fill(Mapped({"kafka": kafka})).get("kafka", {})).settings
    places = {key: place for key, place in kafka.keys.items() if key in settings}
    return check_kafka(KafkaConnection(settings, places), folder)


def _invalid(
    pattern: str, problem: str, remedies: Sequence[str], locations: Mapping[str, SourceLocation]
) -> SpecInvalidError:
    key = f"kafka.{BROKERS}.{pattern}"
    return SpecInvalidError(
        f"`{key}` {problem}", location=locations.get(pattern), remedies=remedies, params={"key": key}
    )
