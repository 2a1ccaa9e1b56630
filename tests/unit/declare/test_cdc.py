"""`create_auto_cdc_from_snapshot_flow`: what it declares, and the arguments that it refuses."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.errors import ArgumentInvalidError, FlowKindsDifferError
from headrace.model.declarations import AutoCdcFlow, Declarations, snapshots_of
from headrace.model.names import ALL_COLUMNS, ChosenColumns
from headrace.model.snapshots import SnapshotFunction, StoredSnapshots
from headrace.plan.validate import check_declarations

Load = Callable[..., Declarations]

CODE = """import headrace as hr
hr.create_streaming_table("t")
hr.create_auto_cdc_from_snapshot_flow({arguments})
"""


def flow_of(load: Load, arguments: str) -> AutoCdcFlow:
    (flow,) = load(CODE.replace("{arguments}", arguments)).flows
    assert isinstance(flow, AutoCdcFlow)
    return flow


def test_a_flow_applies_a_table_a_folder_or_what_a_function_returns(load: Load) -> None:
    table = flow_of(load, 'target="t", source="exports", keys=["id"]')
    assert table.snapshots == StoredSnapshots("exports")
    assert (table.name, str(table.target), table.keys, table.history) == ("t", "default.t", ("id",), None)
    assert table.location.line == 3
    folder = flow_of(load, '"t", "./exports", ["id"], 2, name="into_t"')
    assert isinstance(folder.snapshots, StoredSnapshots) and folder.snapshots.is_path
    assert (folder.name, folder.history) == ("into_t", ALL_COLUMNS)
    function = flow_of(load, '"t", lambda last: None, ["a", "b"], "2", track_history_column_list=["x"]')
    assert isinstance(function.snapshots, SnapshotFunction)
    assert (function.keys, function.history) == (("a", "b"), ChosenColumns(included=("x",)))


def test_the_older_name_declares_the_same(load: Load) -> None:
    (flow,) = load(
        'import headrace as hr\nhr.create_streaming_table("t")\n'
        'hr.apply_changes_from_snapshot("t", "s", ["id"], stored_as_scd_type="1")\n'
    ).flows
    assert snapshots_of(flow) == StoredSnapshots("s")
    (flow,) = load(
        'import dlt\ndlt.create_streaming_table("t")\n'
        'dlt.apply_changes_from_snapshot(target="t", snapshot_and_version="s", keys=["id"])\n'
    ).flows
    assert snapshots_of(flow) == StoredSnapshots("s")


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ('"t", 7, ["id"]', "source"),
        ('"t", " ", ["id"]', "source"),
        ('"t", "s", "id"', "keys"),
        ('"t", "s", []', "keys"),
        ('"t", "s", ["id"], 3', "stored_as_scd_type"),
        ('"t", "s", ["id"], track_history_column_list=["a"]', "track_history_column_list"),
        (
            '"t", "s", ["id"], 2, track_history_column_list=["a"], track_history_except_column_list=["b"]',
            "track_history_column_list",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_refused(load: Load, arguments: str, argument: str) -> None:
    with pytest.raises(ArgumentInvalidError) as caught:
        load(CODE.replace("{arguments}", arguments))
    assert caught.value.params["argument"] == argument


@pytest.mark.parametrize(
    "other",
    [
        'hr.create_auto_cdc_from_snapshot_flow("t", "./two", ["id"], name="other")',
        'hr.create_auto_cdc_flow("t", "changes", ["id"], "n", name="other")',
        '@hr.append_flow(target="t")\ndef other(): ...',
    ],
)
def test_a_table_of_snapshots_has_no_other_flow(load: Load, other: str) -> None:
    declared = load(CODE.replace("{arguments}", '"t", "./one", ["id"]') + other + "\n")
    (error,) = check_declarations(declared)
    assert isinstance(error, FlowKindsDifferError)
    assert sorted(error.params["flows"]) == ["other", "t"]
