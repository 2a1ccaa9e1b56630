"""The module that files written for Spark's pipelines, Delta Live Tables and Lakeflow import.

While the files of a pipeline are loaded, ``pyspark.pipelines``, ``dlt`` and ``databricks.pipelines`` are this
module. It has our declarations with the further arguments of Databricks: those that mean nothing here are
noted in the plan, and those that would change results are refused.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from types import ModuleType
from typing import Any

from headrace.declare import cdc, python
from headrace.declare.arguments import arguments_of
from headrace.declare.expectations import (
    expect,
    expect_all,
    expect_all_or_drop,
    expect_all_or_fail,
    expect_all_or_quarantine,
    expect_or_drop,
    expect_or_fail,
    expect_or_quarantine,
)
from headrace.declare.registry import current_pipeline, spark
from headrace.declare.sinks import create_sink, foreach_batch_sink
from headrace.errors import FeatureUnsupportedError
from headrace.runtime.lazy_pyspark import DataFrame
from headrace.storage.layout import locate_supported
from headrace.storage.table_log import is_table
from headrace.syntax.locations import called_name, caller

__all__ = [
    "append_flow",
    "apply_changes",
    "apply_changes_from_snapshot",
    "create_auto_cdc_flow",
    "create_auto_cdc_from_snapshot_flow",
    "create_sink",
    "create_streaming_live_table",
    "create_streaming_table",
    "create_table",
    "create_target_table",
    "create_view",
    "expect",
    "expect_all",
    "expect_all_or_drop",
    "expect_all_or_fail",
    "expect_all_or_quarantine",
    "expect_or_drop",
    "expect_or_fail",
    "expect_or_quarantine",
    "foreach_batch_sink",
    "materialized_view",
    "on_event_hook",
    "read",
    "readStream",
    "read_stream",
    "replace_flow",
    "table",
    "temporary_view",
    "update_flow",
    "view",
]

_OF_PYSPARK = ("pyspark.pipelines", "pyspark.dbutils")
_NAMES = ("pyspark.pipelines", "dlt", "databricks.pipelines")
_WITHOUT_MEANING = {"cluster_by_auto": "name the columns with cluster_by"}
"""The arguments that mean nothing here, with what is done."""
_UNSUPPORTED = {
    "row_filter": "every reader of the files sees all rows",
    "replace_using": "create_auto_cdc_flow keeps the newest row of each key",
    "system_sequence_by": "only Databricks has bitemporal histories; stored_as_scd_type=2 has one time",
    "columns_to_update": "all columns are written; ignore_null_updates keeps a value where a record has NULL",
}
"""The arguments that are refused, with what there is in their place."""


_STORED = (python.table, python.materialized_view, python.create_streaming_table)
"""The declarations of tables, which take a ``path``."""


@contextmanager
def importable(dbutils: Any) -> Iterator[None]:
    """Let files import this module by the names of the others, and ``dbutils`` by its names."""
    ours = sys.modules[__name__]
    placed: dict[str, ModuleType] = dict.fromkeys(_NAMES, ours)
    for name in ("databricks", "databricks.sdk"):
        if name not in sys.modules and (name.partition(".")[0] in placed or find_spec(name) is None):
            placed[name] = _module(name, __path__=[])
    placed["pyspark.dbutils"] = _module("pyspark.dbutils", DBUtils=lambda _=None: dbutils)
    placed["databricks.sdk.runtime"] = _module("databricks.sdk.runtime", dbutils=dbutils, spark=spark)
    # Python makes a module an attribute of its package when it imports the module. It imports no module that
    # `sys.modules` has, so these are given by a finder if PySpark is imported later.
    later = {} if "pyspark" in sys.modules else {name: placed.pop(name) for name in _OF_PYSPARK}
    before = {name: sys.modules.get(name) for name in (*placed, *later)}
    sys.modules.update(placed)
    # `from package import name` takes an attribute first, and `package.name` has nothing else.
    attributes = []
    for name, module in placed.items():
        above, _, last = name.rpartition(".")
        if above in sys.modules:
            names = vars(sys.modules[above])
            attributes.append((names, last, names.get(last)))
            names[last] = module
    finder = _LaterModules(later)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        if later and (pyspark := sys.modules.get("pyspark")) is not None:
            attributes += [(vars(pyspark), name.rpartition(".")[2], None) for name in later]
        for name, found in before.items():
            if found is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = found
        for names, last, attribute in attributes:
            if attribute is None:
                names.pop(last, None)
            else:
                names[last] = attribute


class _LaterModules(MetaPathFinder, Loader):
    """Gives modules of a package that is not imported yet: the import of the package must come first."""

    def __init__(self, modules: Mapping[str, ModuleType]) -> None:
        self._modules = modules

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return spec_from_loader(fullname, self) if fullname in self._modules else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = self._modules[spec.name]
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


def _module(name: str, **attributes: Any) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(attributes)
    return module


def _adapted(call: str, function: Callable[..., Any], *ignored: str) -> Callable[..., Any]:
    """One of our declarations that also takes the arguments of Databricks."""

    @functools.wraps(function)
    def declare(*positional: Any, **arguments: Any) -> Any:
        given = {name: value for name, value in arguments.items() if name not in ignored}
        path = given.pop("path", None) if function in _STORED else None
        declared = function(*positional, **_ours(call, given))
        if path is None:
            return declared
        check = functools.partial(check_path, call, path)
        if declared is None:
            return check()

        def decorator(function: Any) -> Any:
            done = declared(function)
            check()
            return done

        return decorator

    return declare


def table(query_function: Any = None, /, **arguments: Any) -> Any:
    """Declare a streaming table, or a materialized view if the query reads no stream."""
    declare = _table(**arguments)

    def decorator(function: Any) -> Any:
        declared = declare(function)
        active = current_pipeline()
        if active is not None and active.registry is not None:
            active.registry.let_query_decide(function)
        return declared

    return decorator if query_function is None else decorator(query_function)


_table = _adapted("@dp.table", python.table)
create_table = table
materialized_view = _adapted("@dp.materialized_view", python.materialized_view)
temporary_view = view = create_view = _adapted("@dp.temporary_view", python.temporary_view)
append_flow = _adapted("@dp.append_flow", python.append_flow, "comment")
create_streaming_table = _adapted("dp.create_streaming_table", python.create_streaming_table)
create_target_table = create_streaming_live_table = create_streaming_table
create_auto_cdc_flow = apply_changes = _adapted("dp.create_auto_cdc_flow", cdc.create_auto_cdc_flow)
create_auto_cdc_from_snapshot_flow = _adapted(
    "dp.create_auto_cdc_from_snapshot_flow", cdc.create_auto_cdc_from_snapshot_flow
)


@functools.wraps(create_auto_cdc_from_snapshot_flow)
def apply_changes_from_snapshot(*positional: Any, **arguments: Any) -> Any:
    if "snapshot_and_version" in arguments:
        # The name of `source` before the function was documented.
        arguments["source"] = arguments.pop("snapshot_and_version")
    return create_auto_cdc_from_snapshot_flow(*positional, **arguments)


def replace_flow(**arguments: Any) -> Any:
    """Refused: it replaces all rows of a key together."""
    raise _unsupported("dp.replace_flow", "create_auto_cdc_flow keeps the newest row of each key")


def update_flow(**arguments: Any) -> Any:
    """Refused: a sink gets rows that do not change."""
    raise _unsupported("dp.update_flow", "declare a table that aggregates, and send its changes to the sink")


def on_event_hook(hook: Any = None, /, **arguments: Any) -> Any:
    """Noted: a hook gets the events of Databricks, which do not exist here."""
    active = current_pipeline()
    if active is not None:
        text = "@dp.on_event_hook has no effect here: `headrace events` prints the events of the pipeline"
        active.note(text, caller(active.settings.root))
    return hook if hook is not None else lambda function: function


def _unsupported(call: str, remedy: str) -> FeatureUnsupportedError:
    active = current_pipeline()
    call = called_name(call)
    return FeatureUnsupportedError(
        f"this version does not support {call}",
        location=caller(active.settings.root if active else None),
        remedies=[remedy],
        params={"what": call},
    )


def read(name: str) -> DataFrame:
    return spark.read.table(name)


def read_stream(name: str) -> DataFrame:
    return spark.readStream.table(name)


readStream = read_stream


def _ours(call: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that declarations of Headrace have; other arguments are noted or refused."""
    active = current_pipeline()
    location = caller(active.settings.root if active else None)
    call = called_name(call)
    kept: dict[str, Any] = {}
    for name, value in arguments.items():
        if name == "temporary":
            # The older name of a private table.
            kept["private"] = kept.get("private", False) or bool(value)
            continue
        is_given = value is not None and value is not False
        if name in _UNSUPPORTED and is_given:
            raise FeatureUnsupportedError(
                f"{call}: the argument `{name}` is not supported",
                location=location,
                facts=[_UNSUPPORTED[name]],
                remedies=[f"remove `{name}`"],
                params={"argument": name},
            )
        if name in _WITHOUT_MEANING and is_given and active is not None:
            active.note(f"{call}: `{name}` has no effect here: {_WITHOUT_MEANING[name]}", location)
        if name not in _UNSUPPORTED and name not in _WITHOUT_MEANING:
            kept[name] = value
    return kept


def check_path(call: str, path: Any, argument: str = "path") -> None:
    """Compare the ``path`` of the table that was declared last with its folder in the storage.

    An entry of `paths` in the spec can map the path to that folder. Otherwise the plan gets a warning,
    because programs that read the path do not find the rows.
    """
    arguments = arguments_of(call)
    call = arguments.call
    text = arguments.text("path", path)
    active = current_pipeline()
    if active is None or active.registry is None:
        return
    settings, name = active.settings, active.registry.newest.name
    folder = locate_supported(settings.paths.map(text), settings.data_folder)
    own = settings.storage.table(name)
    if folder is not None and folder.below(settings.storage.tables) == (name.schema, name.name):
        return
    shown = "/".join(own.below(settings.storage.root) or ())
    entry = f'paths: {{"{text}": {own}}}'
    if folder is not None and is_table(folder):
        raise FeatureUnsupportedError(
            f"{call}: `{name.short}` cannot be stored in {text}, which already has a table",
            location=arguments.location,
            facts=[
                f"tables are stored in the pipeline's storage; this table in {shown}",
                "programs that read the other table would find no new rows",
            ],
            remedies=[
                f"let these programs read {own}, and remove `{argument}`",
                f"or map the path in the spec:   {entry}",
            ],
            params={"argument": "path", "path": text},
        )
    text = f"`{name.short}` is stored in {shown} of the storage, not in {text}"
    remedy = f"let other programs read {own}; for queries of this pipeline, add to the spec:   {entry}"
    active.note(text, arguments.location, level="warning", remedy=remedy)
