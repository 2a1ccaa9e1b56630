"""Checks of a spec: keys, types of values, mappings of names, connections with Kafka, and the cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from headrace.declare.kafka_spec import CONNECTIONS, KafkaSpec
from headrace.declare.spec_model import BROKERS, CONNECTION, SETTINGS, MaintenanceSpec, Overridable, Spec
from headrace.declare.spec_values import Filler, Mapped, Scalar, Sequence, Value
from headrace.errors import SourceLocation, SpecInvalidError, SpecUnknownKeyError, did_you_mean, nearest
from headrace.model.kafka_settings import EMBEDDED, FILES, KAFKA_SETTINGS, KafkaConnection
from headrace.model.names import SPARK_CATALOG
from headrace.model.project import (
    BrokerMap,
    ClusterSettings,
    ExecutorLimits,
    PathMap,
    TableMap,
    absolute_target,
    is_name,
    split_addresses,
)
from headrace.runtime.defaults import is_local

_SPARKS_OWN = {
    "auto.offset.reset": "use read_kafka(starting_offsets=..) instead",
    "enable.auto.commit": "Spark does not use it; offsets are committed with the rows of a batch",
    "key.deserializer": "Spark always reads keys as bytes",
    "value.deserializer": "Spark always reads values as bytes",
    "interceptor.classes": "Spark's Kafka source does not support it",
}
_SERVER = re.compile(r"\S+:\d+")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_PROBE = "probe"  # librdkafka's value for the certificate authorities of the machine


def check_keys(
    value: Value, model: type[BaseModel], path: tuple[str, ...] = (), also: Iterable[str] = ()
) -> None:
    if not isinstance(value, Mapped):
        return
    known = [*model.model_fields, *also]
    for key, item in value.items.items():
        if key not in known:
            raise _unknown_key(key, value.keys[key], known, path)
        if key in also:
            continue
        if key in SETTINGS and model is not MaintenanceSpec:
            _check_settings(key, item)
            continue
        kinds = [*_kinds_in(model.model_fields[key].annotation)]
        inner = next((one for one in kinds if isinstance(one, type) and issubclass(one, BaseModel)), None)
        if inner is None:
            continue
        if list in kinds:
            for entry in item.items if isinstance(item, Sequence) else ():
                check_keys(entry, inner, (*path, key))
        elif dict in kinds:
            for name, entry in item.items.items() if isinstance(item, Mapped) else ():
                check_keys(entry, inner, (*path, key, name))
        else:
            check_keys(item, inner, (*path, key))


def _kinds_in(annotation: Any) -> Iterator[Any]:
    """A type and the types that it is made of."""
    yield get_origin(annotation) or annotation
    for one in get_args(annotation):
        yield from _kinds_in(one)


def _check_settings(name: str, value: Value) -> None:
    if not isinstance(value, Mapped):
        return
    for key, item in value.items.items():
        if (name, key) == ("kafka", BROKERS):
            _check_settings(f"kafka.{BROKERS}", item)
            continue
        if (name, key) == ("kafka", CONNECTION):
            _check_connection(item)
            continue
        if isinstance(item, Mapped | Sequence):
            flat = f"`{key}.{next(iter(item.items), 'name')}: ..`" if isinstance(item, Mapped) else "one text"
            raise SpecInvalidError(
                f"{name}.{key} must be text, not {_kind(item)}",
                location=value.keys[key],
                remedies=[f"write the name with its dots on one line: {flat}"],
                params={"key": f"{name}.{key}"},
            )
        if name == "kafka" and key not in KAFKA_SETTINGS:
            bare = key.removeprefix("kafka.")
            close = bare if bare in KAFKA_SETTINGS else nearest(key, sorted(KAFKA_SETTINGS), 0.85)
            if close is not None:
                raise _unknown_key(key, value.keys[key], [close], ("kafka",))


def _check_connection(value: Value) -> None:
    if not isinstance(value, Mapped):
        return
    path, kind = ("kafka", CONNECTION), value.items.get("type")
    if kind is None:  # another profile, or the spec itself, may have it
        known = dict.fromkeys(name for model in CONNECTIONS.values() for name in model.model_fields)
        for key in value.items:
            if key not in known:
                raise _unknown_key(key, value.keys[key], known, path)
    elif isinstance(kind, Scalar) and kind.text in CONNECTIONS:
        check_keys(value, CONNECTIONS[kind.text], path)
    else:
        given = kind.text if isinstance(kind, Scalar) else ""
        remedies = did_you_mean(given, CONNECTIONS, "write such as type: msk")
        problem = f"is not one of {', '.join(CONNECTIONS)}"
        raise key_error(f"{'.'.join(path)}.type", problem, value.keys["type"], remedies)


def _unknown_key(
    key: str, location: SourceLocation, known: Iterable[str], path: tuple[str, ...]
) -> SpecUnknownKeyError:
    known = list(known)
    close = nearest(key, known)
    where = f" under `{'.'.join(path)}`" if path else ""
    hint = f"; did you mean `{close}`?" if close else ""
    return SpecUnknownKeyError(
        f"Unknown key `{key}`{where}{hint}",
        location=location,
        remedies=[f"write `{close}`" if close else f"the keys here are: {', '.join(known)}"],
        params={"key": ".".join((*path, key)), "suggestion": close},
    )


def build_error(error: ValidationError, merged: Mapped, shown: str) -> SpecInvalidError:
    """All errors of the model as one: the first in the file, with the others as its facts."""
    problems = [_problem(detail, merged, shown) for detail in error.errors()]
    first, *others = sorted(
        problems, key=lambda one: (one.location.line, one.location.column or 0) if one.location else (0, 0)
    )
    return first.with_(
        facts=[*first.facts, *(f"also {other.location}: {other.summary}" for other in others[:4])]
    )


def _problem(detail: Any, merged: Mapped, shown: str) -> SpecInvalidError:
    path = tuple(part for part in detail["loc"] if not (isinstance(part, str) and part[:1].isupper()))
    if path[:2] == ("kafka", CONNECTION):
        path = (*path[:2], *path[3:])  # without the type that decides about the others
    key = ".".join(str(part) for part in path)
    location, value = _find(merged, path, shown)
    if detail["type"] == "missing":
        remedy = f"add a line such as `{path[-1]}: {'my_pipeline' if key == 'name' else '..'}`"
        location = SourceLocation(shown, 1) if len(path) == 1 else location
        return key_error(key, "is missing", location, [remedy])
    meanings = {
        "string_type": f"must be text, not {_kind(value)}",
        "string_too_short": "must not be empty",
        "bool_type": f"must be true or false, not {_kind(value)}",
        "union_tag_not_found": f"needs `type`, one of {', '.join(CONNECTIONS)}",
        "literal_error": f"must be one of {detail.get('ctx', {}).get('expected', '')}",
        "list_type": f"must be a list, not {_kind(value)}",
        "too_short": "must not be empty",
        "dict_type": f"must be a mapping, not {_kind(value)}",
        "model_type": f"must be a mapping, not {_kind(value)}",
        "model_attributes_type": f"must be a mapping, not {_kind(value)}",
    }
    if detail["type"] == "value_error":
        meaning = str(detail["ctx"]["error"])
    else:
        meaning = meanings.get(detail["type"], detail["msg"])
    return key_error(key, meaning, location, _examples(path, value))


def _examples(path: tuple[Any, ...], value: Value | None) -> list[str]:
    match path[0]:
        case "libraries":
            return ["write libraries: [{glob: {include: transformations/**}}]"]
        case "trigger" | "views" if len(path) == 1:
            return [f"write {path[0]}: {{interval: 10 seconds}}"]
        case "kafka" if len(path) > 1 and path[1] == BROKERS:
            return ['write kafka: {brokers: {"*.example.com:9093": prod}}']
        case "kafka" if len(path) == 1:
            return ["write kafka: {bootstrap.servers: embedded}"]
        case _ if isinstance(value, Scalar) and not isinstance(value.value, str | None):
            return [f'put it in quotes: "{value.text}"'] if len(path) == 1 else []
        case _:
            return []


def _find(value: Value, path: tuple[Any, ...], shown: str) -> tuple[SourceLocation, Value | None]:
    """The location of a value, or of the deepest key on its path that exists, and the value."""
    location = SourceLocation(shown, 1)
    current: Value | None = value
    for part in path:
        if isinstance(current, Mapped) and part in current.items:
            location = current.keys.get(part, location)
            current = current.items[part]
        elif isinstance(current, Sequence) and isinstance(part, int) and part < len(current.items):
            current = current.items[part]
            location = current.location
        else:
            return location, None
    return (current.location if isinstance(current, Scalar) else location), current


def _kind(value: Value | None) -> str:
    match value:
        case Mapped():
            return "a mapping"
        case Sequence():
            return "a list"
        case Scalar(value=bool()):
            return f"{value.text} (true or false)"
        case Scalar(value=int() | float()):
            return f"{value.text} (a number)"
        case Scalar(value=None) | None:
            return "nothing"
        case _:
            return f"`{value.text}`"


def check_kafka(connection: KafkaConnection, folder: Path) -> KafkaConnection:
    settings = connection.settings
    for key in sorted(_SPARKS_OWN.keys() & settings.keys()):
        raise _kafka_error(connection, key, f" cannot be set: {_SPARKS_OWN[key]}", "remove it")
    _check_servers(connection)
    _check_login(connection)
    found = replace(connection, settings={**settings, **_paths(connection, folder)})
    # Both clients check their settings now, not only the one that is used first.
    found.for_spark()
    found.for_librdkafka()
    return found


def _check_servers(connection: KafkaConnection) -> None:
    servers = connection.settings.get("bootstrap.servers", EMBEDDED)
    for server in () if servers == EMBEDDED else servers.split(","):
        if not _SERVER.fullmatch(server.strip()):
            remedy = "write such as broker.example:9092, several separated by commas, or `embedded`"
            raise _kafka_error(
                connection, "bootstrap.servers", f": `{server.strip()}` is not HOST:PORT", remedy
            )


def _check_login(connection: KafkaConnection) -> None:
    settings = connection.settings
    if connection.protocol not in _PROTOCOLS:
        text = f": `{settings['security.protocol']}` is not one of {', '.join(_PROTOCOLS)}"
        raise _kafka_error(connection, "security.protocol", text, "write such as security.protocol: SASL_SSL")
    if connection.is_embedded or "sasl.username" not in settings:
        return
    if not connection.protocol.startswith("SASL_"):
        text = f" is set, but security.protocol is {connection.protocol}, which has no login"
        raise _kafka_error(connection, "sasl.username", text, "add security.protocol: SASL_SSL")
    if not settings.keys() & {"sasl.mechanism", "sasl.mechanisms"}:
        remedy = "add sasl.mechanism: SCRAM-SHA-512, or SCRAM-SHA-256, or PLAIN, as the cluster is configured"
        raise _kafka_error(connection, "sasl.username", " is set without sasl.mechanism", remedy)
    if "sasl.password" not in settings:
        remedy = "add sasl.password: ${KAFKA_PASSWORD}"
        raise _kafka_error(connection, "sasl.username", " is set without sasl.password", remedy)


def _paths(connection: KafkaConnection, folder: Path) -> Mapping[str, str]:
    found = {}
    for key in FILES:
        text = connection.settings.get(key)
        if text is None or text == _PROBE:
            continue
        path = folder / Path(text).expanduser()
        # OpenSSL also takes a folder of certificate authorities.
        if not path.exists() or (path.is_dir() and key != "ssl.ca.location"):
            raise _kafka_error(
                connection, key, f": the file {path} does not exist", "create the file, or correct the path"
            )
        found[key] = str(path)
    return found


def _kafka_error(connection: KafkaConnection, key: str, wrong: str, remedy: str) -> SpecInvalidError:
    name = f"kafka.{connection.name(key)}"
    return SpecInvalidError(
        f"{name}{wrong}", location=connection.place(key), remedies=[remedy], params={"key": name}
    )


_TABLE = re.compile(r"(?:`[^`]+`|[\w-]+)(?:\.(?:`[^`]+`|[\w-]+)){0,2}(?:(?<!\.)\.\*)?")
_TABLES = "write a.b.c, a.b.* or a.*"
_CATALOG = re.compile(r"spark\.sql\.catalog\.(\w+)$")


def build_tables(spec: Spec, folder: Path, locations: Mapping[str, SourceLocation]) -> TableMap:
    found = map(_CATALOG.match, spec.configuration)
    catalogs = {SPARK_CATALOG, spec.catalog, *(one[1] for one in found if one)}
    targets = {}
    for name, target in spec.tables.items():
        if not _TABLE.fullmatch(name):
            raise key_error(f"tables.{name}", "is not a name of a table", locations.get(name), [_TABLES])
        if is_name(target) and target.partition(".")[0] not in catalogs:
            problem = f"is `{target}`, which is neither a path nor a catalog of `configuration`"
            remedy = f"for a folder write ./{target}"
            raise key_error(f"tables.{name}", problem, locations.get(name), [remedy])
        targets[name] = target if is_name(target) else absolute_target(target, folder)
    return TableMap(targets)


def build_paths(spec: Spec, folder: Path, locations: Mapping[str, SourceLocation]) -> PathMap:
    for prefix in spec.paths:
        if not re.match(r"/[^/]|[a-zA-Z][a-zA-Z0-9+.-]*:", prefix):
            problem = "is not the beginning of an absolute path"
            remedies = ["write such as dbfs:/ or /Volumes/main"]
            raise key_error(f"paths.{prefix}", problem, locations.get(prefix), remedies)
    return PathMap({prefix: absolute_target(target, folder) for prefix, target in spec.paths.items()})


def key_error(
    key: str, problem: str, location: SourceLocation | None, remedies: Iterable[str]
) -> SpecInvalidError:
    return SpecInvalidError(
        f"`{key}` {problem}", location=location, remedies=[*remedies], params={"key": key}
    )


def build_connection(spec: KafkaSpec, merged: Mapped, settings: Mapping[str, str]) -> KafkaConnection:
    """The connection of a spec, with the location of each of its settings."""
    entry = merged.items.get("kafka")
    keys = entry.keys if isinstance(entry, Mapped) else {}
    login = entry.items.get(CONNECTION) if isinstance(entry, Mapped) else None
    own = login.keys if isinstance(login, Mapped) else {}
    places = {key: place for key, place in keys.items() if key in settings}
    places |= {key: own.get(name, keys[CONNECTION]) for key, name in spec.written.items()}
    return KafkaConnection(settings, places, spec.written)


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
        key, location = f"kafka.{BROKERS}.{pattern}", locations.get(pattern)
        if not list(split_addresses(pattern)):
            raise key_error(key, "names no address", location, ["write such as broker.example:9092"])
        if name in connections:
            continue
        if name in (EMBEDDED, chosen):
            connections[name] = None
        elif name in profiles:
            found = _connection(profiles[name](), filler, folder)
            if found.is_embedded or not found.bootstrap_servers:
                problem = f"names the profile `{name}`, which has no broker of its own"
                remedy = f"add to the profile:   {name}: {{kafka: {{bootstrap.servers: HOST:PORT}}}}"
                raise key_error(key, problem, location, [remedy, f"or write {EMBEDDED}"])
            connections[name] = found
        else:
            known = [EMBEDDED, *profiles]
            problem = f"is `{name}`, which is neither `{EMBEDDED}` nor a profile of the spec"
            remedy = f"add a profile:   profiles: {{{name}: {{kafka: {{bootstrap.servers: HOST:PORT}}}}}}"
            raise key_error(key, problem, location, did_you_mean(name, known, remedy))
    return BrokerMap(dict(targets), connections)


def _connection(merged: Mapped, filler: Filler, folder: Path) -> KafkaConnection:
    kafka = {"kafka": merged.items.get("kafka", Mapped({}))}
    try:
        spec = Overridable.model_validate(filler.fill(Mapped(kafka))).kafka
    except ValidationError as error:
        raise build_error(error, merged, merged.location.path) from error
    return check_kafka(build_connection(spec, merged, spec.settings), folder)


_CORES = "spark.executor.cores"
_DYNAMIC = "spark.dynamicAllocation.enabled"


def build_cluster(
    spec: Spec, keys: Mapping[str, SourceLocation], settings: Mapping[str, SourceLocation]
) -> ClusterSettings:
    """`keys`, `settings`: the locations of the keys of `cluster` and of `configuration`."""
    packages, executors = tuple(spec.cluster.packages), spec.cluster.executors
    if executors is None:
        return ClusterSettings(packages=packages, location=keys.get("packages"))
    master = named_master(spec)
    if master is not None and not is_local(master):
        check_executors(spec.configuration.get, keys.get("executors"), settings)
    limits = ExecutorLimits(
        least=executors.min, most=executors.max, backlog_s=executors.backlog, idle_s=executors.idle
    )
    return ClusterSettings(packages=packages, executors=limits, location=keys.get("packages"))


def named_master(spec: Spec) -> str | None:
    """The Spark master of the spec: ``runtime.master``, or ``spark.master`` of ``configuration``."""
    return spec.runtime.master or spec.configuration.get("spark.master")


def check_executors(
    get: Callable[[str], str | None],
    location: SourceLocation | None = None,
    settings: Mapping[str, SourceLocation] | None = None,
) -> None:
    """Check the Spark settings that `cluster.executors` needs. `location`: that of `cluster.executors`;
    `settings`: those of the settings."""
    if get(_CORES) is None:
        remedies = [f'add `{_CORES}: "2"` under `configuration:`']
        raise key_error(
            "cluster.executors", f"needs `{_CORES}`: the size of one executor", location, remedies
        )
    if (get(_DYNAMIC) or "").lower() == "true":
        raise SpecInvalidError(
            f"`{_DYNAMIC}` cannot be used with `cluster.executors`: both would set the number of executors",
            location=(settings or {}).get(_DYNAMIC),
            remedies=[f"remove `{_DYNAMIC}`, or remove `cluster.executors`"],
            params={"key": f"configuration.{_DYNAMIC}"},
        )
