"""The JSON of all commands, as a JSON Schema; ``tools/make_docs.py`` writes it to ``docs/json.schema.json``.

A shape is written in short: ``"int"``; ``"int?"`` if it can be null; ``["int"]`` for a list; a dict for an
object, in which a key with ``?`` can be absent; ``"#Error"`` for a shape of `SHARED`; a tuple for one of
several.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator, Mapping
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, Literal

from headrace.cli.output import FORMAT_VERSION
from headrace.model import events, table_events
from headrace.model.counts import HistoryChanges, RowChanges
from headrace.model.event_forms import Event
from headrace.model.names import TableName
from headrace.model.ranges import SourceRange

Shape = Any

OTHER_NAMES = ("bootstrap", "servers", "directory", "folder", "file", "log_file")
"""Not the names of an error's params: `bootstrap_servers`, `path` and `log` are."""

_PLAIN: Mapping[str, Mapping[str, Any]] = {
    "text": {"type": "string"},
    "int": {"type": "integer"},
    "number": {"type": "number"},
    "bool": {"type": "boolean"},
    "time": {"type": "string", "format": "date-time"},
    "object": {"type": "object"},
    "params": {"type": "object", "propertyNames": {"not": {"enum": [*OTHER_NAMES]}}},
    "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
    "texts": {"type": "object", "additionalProperties": {"type": "string"}},
    "any": {},
}


_EXPECTATION: Shape = {"name": "text", "dataset": "text", "action": "text", "passed": "int", "failed": "int"}

_LINEAGE_OF: Shape = {
    "dataset": "text?",
    "source": "text?",
    "kind": "text",
    "columns": ["text"],
    "reads": [{"name": "text"}],
    "through": ["text"],
    "known": "bool",
}

_CONDITION = {
    "files": "int",
    "size_bytes": "int",
    "mean_bytes": "int?",
    "stored_files": "int",
    "stored_bytes": "int",
    "commits": "int",
}

SHARED: Mapping[str, Shape] = {
    "Location": {"path": "text", "line": "int", "column?": "int?"},
    "Error": {
        "code": "text",
        "summary": "text",
        "location": ("#Location", "null"),
        "facts": ["text"],
        "remedies": ["text"],
        "params": "params",
        "transient": "bool",
        "trace?": "text",
    },
    "Failure": ("#Error", "null"),
    "Driver": ({"pid": "int?", "host": "text?"}, "null"),
    "Holder": {"kind": "text", "name": "text", "version": "int"},
    "Column": {"name": "text", "type": "text"},
    "Position": "any",
    "Range": "object",
    "SourceAt": {"source": "text", "position": "#Position"},
    "Expectation": _EXPECTATION,
    "Erased": {
        "dataset": "text",
        "part": "text",
        "due": "time",
        "awaits_refresh": "bool",
        "unfinished": "bool",
        "files": "int",
        "size_bytes": "int",
        "commits": "int",
        "kept_for": ["#Holder"],
    },
    "LaggingReader": {
        "dataset": "text",
        "reader": "#Holder",
        "lag_s": "int",
        "until": "time",
        "text": "text",
        "command": "text",
    },
    "Pin": {"dataset": "text", "version": "int", "until": "time"},
    "Condition": _CONDITION,
    "TableHealth": {
        "dataset": "text",
        "part": "text",
        **{f"{name}?": shape for name, shape in _CONDITION.items()},
        "small_files": "int",
        "partitions": "int",
        "skew": "number?",
        "commits_after_checkpoint": "int",
        "deleted_share": "number",
        "compacted": "time?",
        "vacuumed": "time?",
        "oldest_needed": ("#Holder", "null"),
        "remarks": [{"text": "text", "command": "text?"}],
        "problem": "text?",
    },
    "Maintenance": {
        "dataset": "text",
        "part": "text",
        "steps": ["text"],
        "dry_run": "bool",
        "before": ("#Condition", "null"),
        "after": ("#Condition", "null"),
        "vacuum": (
            {
                "kept_since": "time",
                "readable_from": "int",
                "files": "int",
                "size_bytes": "int",
                "held_files": "int",
                "held_bytes": "int",
                "held_by": ["#Holder"],
            },
            "null",
        ),
        "log_cleanup": (
            {"first": "int", "files": "int", "commits": "int", "held_by": ("#Holder", "null")},
            "null",
        ),
        "duration_s": "number",
        "conflicts": "int",
        "erased": ("#Erased", "null"),
        "replaced_checkpoints": [
            {"flow": "text", "path": "text", "replaced": "time", "files": "int", "size_bytes": "int"}
        ],
        "warning": "text?",
        "error": "#Failure",
    },
    "LineageOf": _LINEAGE_OF,
    "Edge": {
        "from": {"dataset": "text?", "source": "text?", "column": "text"},
        "to": {"dataset": "text", "column": "text?"},
        "flow": "text",
        "type": "text",
        "way": "text",
        "masked": "bool",
    },
    "Rows": {"columns": ["#Column"], "rows": ["object"], "cut": "bool"},
    "TableRows": {
        "path": "text",
        "version": "int",
        "columns": ["#Column"],
        "rows": ["object"],
        "cut": "bool",
    },
    "Plan": {
        "pipeline": "text",
        "profile": "text",
        "storage": "text",
        "datasets": [
            {
                "dataset": "text",
                "kind": "text",
                "comment": "text?",
                "expectations": [{"name": "text", "condition": "text", "action": "text", "nulls": "text"}],
                "checks": [{"name": "text", "fail": "bool"}],
                "partition_cols?": ["text"],
                "cluster_by?": ["text"],
                "table_properties?": "texts",
                "location": "#Location",
                "schema": "any",
                "reads": ["text"],
                "flows": [
                    {
                        "flow": "text",
                        "location": "#Location",
                        "sources": ["object"],
                        "spark_conf": "object",
                        "stateful": "bool",
                        "coordinates": ("texts", "null"),
                        "timestamp": "text?",
                        "max_rejected": "text?",
                        "fingerprint": "text?",
                    }
                ],
                "fingerprint": "text?",
                "refresh": (
                    {"policy": "text", "strategies": ["text"], "code": "text?", "reason": "text?"},
                    "null",
                ),
            }
        ],
        "edges": [["text"]],
        "changes": (
            [{"kind": "text", "dataset": "text", "part": "text?", "name": "text?", "text": "text"}],
            "null",
        ),
        "would_change": "bool?",
        "refusals": ["#Error"],
        "warnings": ["text"],
        "notes": [{"level": "text", "text": "text", "location": "#Location", "remedy": "text?"}],
    },
    "Result": {
        "update": "text",
        "outcome": "text",
        "duration_s": "number",
        "log": "text?",
        "flows": [
            {
                "flow": "text",
                "outcome": "text",
                "rows": "int",
                "batches": "int",
                "late": "int",
                "commits": "int",
                "duration_s": "number",
                "error": "#Failure",
                "reason": "text?",
            }
        ],
        "views": [
            {"dataset": "text", "outcome": "text", "rows": "int?", "error": "#Failure", "reason": "text?"}
        ],
    },
    "FlowStatus": {
        "flow": "text",
        "state": "text",
        "checkpoint": "text?",
        "batch": "int?",
        "version": "int?",
        "committed": "time?",
        "pending": "int?",
        "lag": "int?",
        "lag_bytes": "int?",
        "behind_s": "number?",
        "rows_per_s": "number?",
        "late": "int",
        "driver": "#Driver",
        "error": ("object", "null"),
        "reason": "text?",
        "orphaned": "bool",
    },
    "DatasetStatus": {
        "dataset": "text",
        "kind": "text",
        "version": "int?",
        "rows": "int?",
        "files": "int?",
        "size_bytes": "int?",
        "changed": "time?",
        "freshness_s": "number?",
        "flows": ["#FlowStatus"],
        "view": (
            {
                "state": "text",
                "version": "int?",
                "refreshed": "time?",
                "inputs": "counts",
                "late": ["text"],
                "driver": "#Driver",
                "error": ("object", "null"),
                "reason": "text?",
            },
            "null",
        ),
        "problem": "text?",
        "orphaned": "bool",
    },
    "Grade": {
        "verdict": "text",
        "text": "text",
        "reasons": ["text"],
        "findings": ["object"],
        "figures": "counts",
        "details?": "object",
    },
    "DatasetProof": {
        "dataset": "text",
        "kind": "text",
        "version": "int",
        "table": "#Grade",
        "flows": [
            {
                "flow": "text",
                "checkpoint": "text",
                "generation": "int",
                "batch": "int?",
                "version": "int?",
                "pending": "int?",
                "grades": {"ranges?": "#Grade", "counts?": "#Grade", "records?": "#Grade"},
                "notes": ["text"],
            }
        ],
        "view": (
            {
                "version": "int",
                "rows": "int",
                "fresh": "bool",
                "text": "text",
                "inputs": "counts",
                "definition": "text",
            },
            "null",
        ),
        "notes": ["text"],
        "undecoded": "int",
        "sample": ("#Grade", "null"),
        "query": ("#Grade", "null"),
        "unsampled": "bool",
    },
    "Quality": {
        "name": "text",
        "dataset": "text",
        "action": "text",
        "passed": "int",
        "failed": "int",
        "over_time": [{"start": "time", "end": "time", "passed": "int", "failed": "int"}],
    },
    "Table": {
        "dataset": "text",
        "kind": "text",
        "pipeline": "text?",
        "path": "text",
        "version": "int",
        "comment": "text?",
        "columns": [{"name": "text", "type": "text", "nullable": "bool", "comment": "text?"}],
        "partition_cols": ["text"],
        "cluster_by": ["text"],
        "keys": ["text"],
        "stored_as_scd_type": "text?",
        "flows": ["text"],
        "properties": "texts",
        "orphaned?": "bool",
    },
    "Inferred": {
        "source": "text",
        "records": "int",
        "tombstones": "int",
        "corrupt": "int",
        "corrupt_records": [{"position": "text", "problem": "text", "excerpt": "text"}],
        "duration_s": "number",
        "schema": "any",
        "ddl": "text",
        "conflicts": ["object"],
        "tolerated": ["object"],
        "empty": [{"field": "text", "problem": "text", "type": "text"}],
        "changes": ([{"field": "text", "before": "text?", "after": "text?"}], "null"),
    },
    "Broker": {
        "pipeline": "text?",
        "state": "text",
        "bootstrap_servers": "text?",
        "pid": "int?",
        "memory_mb": "int?",
        "idle_minutes": "number",
        "path": "text",
        "log": "text",
    },
    "CheckpointProblems": {
        "flow": "text",
        "dataset": "text",
        "path": "text",
        "problems": [{"path": "text", "found": "text", "repair": "text?"}],
    },
    "Reset": {
        "flow": "text",
        "dataset": "text",
        "sources": ["#SourceAt"],
        "losses": "int",
        "repeats": ["object"],
    },
    "Erasure": {
        "done": "bool",
        "dataset": "text",
        "steps": [{"dataset": "text", "part": "text", "path": "text", "rows": "int"}],
        "notes": ["text"],
        "final_at": "time",
        "rest": ["#Erased"],
        "unchecked": ["text"],
    },
    "NotDone": {"done": "bool"},
    "Note": {"note": "text"},
}

_RUN_LINES: tuple[Shape, ...] = ("#Note", {"result": "#Result"})

RUN: tuple[Shape, ...] = ("#RunLine",)

_STATUS: Shape = {
    "pipeline": "text",
    "storage": "text",
    "at": "time",
    "broker": {"bootstrap_servers": "text?", "problem": "text?", "error": "#Failure"},
    "datasets": ["#DatasetStatus"],
    "lagging_readers": ["#LaggingReader"],
    "log": "text?",
}

COMMANDS: Mapping[str, tuple[Shape, ...]] = {
    "init": ({"pipeline": "text", "paths": ["text"], "notes": ["text"], "next": ["text"]},),
    "plan": ("#Plan", {"svg": "text"}, {"mermaid": "text"}, {"dot": "text"}),
    "preview": (
        {
            "dataset": "text",
            "columns": ["#Column"],
            "rows": ["object"],
            "cut": "bool",
            "sources": [
                {
                    "kind": "text",
                    "name": "text",
                    "read": "int?",
                    "held": "int?",
                    "version": "int?",
                    "computed": "text?",
                }
            ],
            "expectations": ["#Expectation"],
            "bad_records": [{"name": "text", "records": "int", "examples": ["text"]}],
        },
    ),
    "run": RUN,
    "status": (
        _STATUS,
        {**_STATUS, "troubles": [{"dataset": "text?", "flow": "text?", "text": "text", "unknown": "bool"}]},
        {"tables": ["#TableHealth"]},
        {
            "slow": [
                {
                    "flow": "text",
                    "batches": "int",
                    "slowest": ["int"],
                    "from_ms": "int",
                    "steps": [
                        {"step": "text", "median_ms": "number", "slow_ms": "number", "share": "number?"}
                    ],
                    "beside": "object",
                    "pauses_ms": "int",
                }
            ]
        },
    ),
    "verify": (
        {
            "pipeline": "text",
            "at": "time",
            "proven": "bool",
            "exit_code": "int",
            "require": "text?",
            "unmet": ["text"],
            "datasets": ["#DatasetProof"],
        },
    ),
    "events": (
        {
            "id": "text",
            "at": "time",
            "event_type": "text",
            "level": "text",
            "flow": "text?",
            "dataset": "text?",
            "update": "text?",
            "batch": "int?",
            "message": "text",
            "details": "object",
        },
    ),
    "lineage": (
        {
            "pipeline": "text",
            "recorded": "text",
            "at": "time",
            "datasets": ["#LineageOf"],
            "edges": ["#Edge"],
        },
        {
            "pipeline": "text",
            "recorded": "text",
            "at": "time",
            **_LINEAGE_OF,
            "column": "text?",
            "upstream": ["#Edge"],
            "downstream": ["#Edge"],
        },
    ),
    "quality": (
        {
            "pipeline": "text",
            "start": "time?",
            "end": "time?",
            "datasets": [
                {
                    "dataset": "text",
                    "accepted": "int",
                    "quarantined": "int",
                    "dropped": "int",
                    "expectations": ["#Quality"],
                    "bad_records": ["#Quality"],
                }
            ],
        },
    ),
    "produce": (
        {
            "topic": "text",
            "bootstrap_servers": "text",
            "created": "bool",
            "skipped": "int",
            "records": "int",
            "size_bytes": "int",
            "unconfirmed": "int",
            "duration_s": "number",
            "interrupted": "bool",
            "partitions": [{"partition": "int", "records": "int", "first": "int?", "last": "int?"}],
        },
    ),
    "consume": (
        {
            "topic": "text",
            "partition": "int",
            "offset": "int",
            "timestamp": "time?",
            "key": "text?",
            "headers": [["text?"]],
            "value": "any",
        },
    ),
    "ingest": (
        *RUN,
        {
            "ingest": {
                "topic": "text",
                "dataset": "text",
                "mode": "text",
                "keys": ["text"],
                "sequence_by": "text?",
                "partition_by": ["text"],
                "cluster_by": ["text"],
                "keep_raw": "bool",
                "columns": "texts",
                "inferred": ("#Inferred", "null"),
            }
        },
        {"maintenance": "#Maintenance"},
        {"rows": "#TableRows"},
        {"paths": ["text"], "variables": ["text"]},
    ),
    "infer": ({"+": "#Inferred", "path": "text", "written": "bool", "usage": "text"},),
    "read": ("#TableRows",),
    "tables": (
        {"tables": ["#Table"], "errors": ["#Error"]},
        "#Table",
        "#NotDone",
        {"done": "bool", "dataset": "text", "paths": ["text"], "files": "int", "size_bytes": "int"},
    ),
    "sql": (*RUN, "#Rows", {"errors": ["#Error"]}),
    "quarantine list": (
        {
            "datasets": [
                {
                    "dataset": "text",
                    "rows": "counts",
                    "flows": "counts",
                    "reasons": [{"reason": "text", "rows": "int"}],
                    "oldest": "time?",
                    "newest": "time?",
                }
            ]
        },
    ),
    "quarantine show": ("#TableRows", "#Rows"),
    "quarantine export": ({"path": "text", "rows": "int", "skipped": "int"},),
    "quarantine replay": (
        {
            "replayed": "int",
            "rejected": "int",
            "left": "int",
            "pending": "int",
            "flows": [
                {
                    "flow": "text",
                    "replayed": "int",
                    "rejected": "int",
                    "left": "int",
                    "accepted": "int",
                    "dropped": "int",
                    "replay": "text?",
                    "version": "int?",
                }
            ],
        },
    ),
    "quarantine discard": ("#NotDone", {"done": "bool", "rows": "int", "flows": "counts", "left": "counts"}),
    "reset": ("#NotDone", {"done": "bool", "flows": ["#Reset"]}),
    "checkpoint show": (
        {
            "checkpoints": [
                {
                    "flow": "text",
                    "dataset": "text",
                    "path": "text",
                    "checkpoint": "text?",
                    "created": "time?",
                    "generation": "int",
                    "replaced": ["text"],
                    "last_planned": "int",
                    "last_finished": "int",
                    "last_committed": "int",
                    "sources": ["#SourceAt"],
                    "watermark": "time?",
                    "state": [{"operator": "int", "partitions": "int", "files": "int", "size_bytes": "int"}],
                    "files": "int",
                    "size_bytes": "int",
                }
            ]
        },
    ),
    "alerts show": (
        {
            "targets": ["text"],
            "rules": [{"on": "text", "datasets": ["text"]}],
            "alerts": [
                {
                    "key": "text",
                    "alert": "text",
                    "subject": "text",
                    "text": "text",
                    "since": "time",
                    "fired": "time?",
                    "told": ["text"],
                    "problems": "texts",
                }
            ],
        },
    ),
    "alerts check": ({"checks": [{"alert": "text", "subject": "text", "bad": "bool?", "text": "text"}]},),
    "alerts test": ({"sent": ["text"], "failed": ["#Error"]},),
    "checkpoint validate": ({"checkpoints": ["#CheckpointProblems"]},),
    "checkpoint repair": (
        "#NotDone",
        {"done": "bool", "repaired": ["#CheckpointProblems"], "backups?": "text"},
    ),
    "full-refresh": (*RUN, "#NotDone"),
    "erase": ("#NotDone", "#Erasure"),
    "maintain": ({"tables": ["#Maintenance"]},),
    "storage copy": (
        {
            "done": "bool",
            "source": "text",
            "target": "text",
            "files": "int",
            "size_bytes": "int",
            "kept": "int",
        },
    ),
    "pin": ({"pins": ["#Pin"]}, {"pinned": "#Pin"}, {"removed": ["#Pin"]}),
    "broker start": ("#Broker",),
    "broker stop": ({"was_running": "bool", "path": "text"},),
    "broker status": ("#Broker",),
    "broker topics create": (
        {"topic": "text", "partitions": "int", "config": "texts", "bootstrap_servers": "text"},
    ),
    "broker topics delete": (
        "#NotDone",
        {"done": "bool", "topic": "text", "id": "text?", "partitions": "int", "records": "int"},
    ),
    "broker topics list": (
        {"topics": [{"topic": "text", "id": "text?", "partitions": "int", "records": "int"}]},
    ),
    "engine status": (
        {
            "engines": [
                {
                    "pid": "int",
                    "jvm_pid": "int",
                    "headrace": "text",
                    "path": "text",
                    "log": "text",
                    "age_s": "number",
                    "idle_s": "number",
                    "memory_mb": "int",
                    "commands": "int",
                    "sessions": [{"pid": "int", "command": "text", "since_s": "number", "state": "text"}],
                }
            ]
        },
    ),
    "deploy": ({"paths": ["text"], "variables": ["text"], "next": ["text"]},),
    "submit": ({"command": ["text"], "secret_settings": ["text"]},),
    "engine stop": ({"stopped": "int"},),
    "explain": ({"code": "text", "text": "text", "exit_code": "int", "transient": "bool"},),
    "ui": ({"url": "text"},),
    "completion": ({"shell": "text", "script": "text"},),
    "doctor": (
        {"ok": "bool", "checks": [{"name": "text", "state": "text", "text": "text", "remedy": "text?"}]},
    ),
    "demo": (
        {
            "ok": "bool",
            "faults": ["text"],
            "path": "text",
            "tables_path": "text",
            "broker_path": "text",
            "records": "int",
            "duration_s": "number",
            "crashes": [
                {
                    "flow": "text",
                    "planned": "int",
                    "finished": "int",
                    "inside_batch": "bool",
                    "in_table": "bool",
                }
            ],
            "replay": "text?",
            "up_to_date": "bool",
            "rejected": "int",
            "replayed": "int",
            "proof": "object",
            "gold": "object",
        },
    ),
    "--version": (dict.fromkeys(("headrace", "spark", "delta", "kafka", "kafka_clients", "java"), "text?"),),
}
"""The objects that a command prints: one, or one a line."""


def build_json_schema() -> str:
    defs = {name: build(shape) for name, shape in SHARED.items()}
    lines = (*_event_shapes(), *_RUN_LINES)
    defs["RunLine"] = build(tuple(map(_with_version, lines)))
    defs["AnError"] = build(_with_version({"error": "#Error"}))
    for command, objects in COMMANDS.items():
        defs[command] = build((*map(_with_version, objects), "#AnError"))
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "The JSON of Headrace's commands, by command",
        "description": "Made by tools/make_docs.py. $defs has a schema for each command; `anyOf` lists the "
        "objects that it prints.",
        "$defs": defs,
    }
    return json.dumps(schema, indent=1) + "\n"


def _with_version(shape: Shape) -> Shape:
    """The shape of an object at the top."""
    first = {"format_version": "version 1"}
    match shape:
        case "#RunLine":
            return shape
        case str():
            return _with_version(SHARED[shape[1:]])
        case {"+": str(other), **more}:
            return {**first, **SHARED[other[1:]], **more}
        case _:
            return {**first, **shape}


def build(shape: Shape) -> dict[str, Any]:
    match shape:
        case tuple():
            return {"anyOf": [build(one) for one in shape]}
        case [one]:
            return {"type": "array", "items": build(one)}
        case Mapping():
            named = {key.removesuffix("?"): build(value) for key, value in shape.items()}
            required = [key for key in shape if not key.endswith("?")]
            return {
                "type": "object",
                "properties": named,
                "required": required,
                "additionalProperties": False,
            }
        case "null":
            return {"type": "null"}
        case "version 1":
            return {"const": FORMAT_VERSION}
        case str() if shape.startswith("="):
            return {"const": shape[1:]}
        case str() if shape.startswith("#"):
            return {"$ref": f"#/$defs/{shape[1:]}"}
        case str() if shape.endswith("?"):
            return {"anyOf": [build(shape[:-1]), {"type": "null"}]}
        case str():
            return dict(_PLAIN[shape])
        case _:
            raise TypeError(f"this is not a shape: {shape!r}")


# -- the events of a run, from their classes


def _event_shapes() -> tuple[Shape, ...]:
    return tuple(
        {"event": f"={kind.__name__}", **_fields(kind)}
        for kind in sorted(_kinds(), key=lambda one: one.__name__)
    )


def _kinds() -> Iterator[type[Event]]:
    for module in (events, table_events):
        for kind in vars(module).values():
            is_kind = (
                isinstance(kind, type) and issubclass(kind, Event) and kind.__module__ == module.__name__
            )
            if is_kind and not kind.__subclasses__():
                yield kind


def _fields(record: type) -> dict[str, Shape]:
    hints = typing.get_type_hints(record)
    return {one.name: _shape_of(hints[one.name]) for one in dataclasses.fields(record)}


def _shape_of(hint: Any) -> Shape:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    simple = {str: "text", int: "int", float: "number", bool: "bool", datetime: "time", TableName: "text"}
    if hint in simple:
        return simple[hint]
    if origin in (typing.Union, UnionType):
        return tuple("null" if one is NoneType else _shape_of(one) for one in arguments)
    if origin is Literal:
        return tuple(f"={one}" for one in arguments)
    if origin is tuple:
        return [_shape_of(arguments[0])]
    if hint is SourceRange:
        return "#Range"
    if hint is RowChanges:
        return (_fields(RowChanges), _fields(HistoryChanges))
    if dataclasses.is_dataclass(hint):
        return _fields(typing.cast(type, hint))
    return "object"
