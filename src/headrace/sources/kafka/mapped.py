"""The connection of a reader or a sink whose brokers the spec maps, and of one that names `embedded`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import OptionInvalidError, SourceLocation
from headrace.model.brokers import AmbiguousBrokersError
from headrace.model.kafka_settings import EMBEDDED
from headrace.model.project import ProjectSettings
from headrace.model.texts import find_option
from headrace.sources.kafka.clusters import brokers_of, same_servers

_CONNECTION = re.compile(
    r"(?:kafka\.)?(?:bootstrap\.servers|security\.protocol|(?:sasl|ssl)\..*)", re.IGNORECASE
)
"""The options that only belong to the connection in the file; some files lack Spark's prefix."""
_PROTOCOL = "kafka.security.protocol"


@dataclass(frozen=True)
class MappedOptions:
    """The options of a reader or a sink with the connection that replaces its own."""

    options: Mapping[str, str]
    note: str | None = None


def map_connection(
    options: Mapping[str, str], settings: ProjectSettings, location: SourceLocation
) -> MappedOptions | None:
    """The options with the connection of the spec in place of their own; ``None`` if they keep their own."""
    servers = brokers_of(options)
    kept = {name: value for name, value in options.items() if not _CONNECTION.fullmatch(name)}
    if servers == EMBEDDED:
        return MappedOptions(kept)
    try:
        found = settings.brokers.find(servers)
    except AmbiguousBrokersError as error:
        raise OptionInvalidError(
            f"the list of brokers `{servers}` is ambiguous",
            location=location,
            facts=[str(error)],
            remedies=["map all addresses of a cluster to one connection"],
            params={"option": "kafka.bootstrap.servers", "value": servers},
        ) from error
    if found is None:
        return None
    note = f"`{servers}` has the connection of {found.name} (kafka.brokers: {found.rule})"
    if found.connection is None:
        return MappedOptions(kept, note)
    chosen = {name.lower() for name in kept}
    given = {k: v for k, v in found.connection.for_spark().items() if k.lower() not in chosen}
    return MappedOptions({**kept, **given}, note)


def check_protocol(options: Mapping[str, str], settings: ProjectSettings, location: SourceLocation) -> None:
    """Refuse a security protocol that the profile's connection to the same brokers does not have: Spark's
    client would wait for the broker for minutes."""
    protocol = find_option(options, _PROTOCOL)
    servers, own = brokers_of(options), settings.kafka
    if protocol is None or protocol.upper() == own.protocol:
        return
    if servers and not same_servers(servers, own.bootstrap_servers):
        return
    remedies = ["remove the options kafka.security.protocol, kafka.sasl.* and kafka.ssl.* of the file"]
    if servers:
        remedies.insert(0, f'add to the spec:   kafka: {{brokers: {{"{servers}": {EMBEDDED}}}}}')
    if not own.is_embedded:
        remedies.append(f"or, if the brokers expect it, write kafka: {{security.protocol: {protocol}}}")
    raise OptionInvalidError(
        f"the file asks {servers or 'the brokers of the profile'} for {protocol}, but the connection of the "
        f"profile `{settings.profile}` is {own.protocol}",
        location=location,
        remedies=remedies,
        params={"option": _PROTOCOL, "value": protocol},
    )
