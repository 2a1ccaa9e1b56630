"""Errors name the function that the file calls, and empty lists mean that nothing is given."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.errors import ArgumentInvalidError, ExpectationInvalidError, FeatureUnsupportedError
from headrace.model.declarations import AutoCdcFlow, Declarations
from headrace.model.names import ALL_COLUMNS

Load = Callable[..., Declarations]


@pytest.mark.parametrize(
    ("code", "begins"),
    [
        ("import dlt\ndlt.apply_changes('t', 's', keys=[], sequence_by='at')", "dlt.apply_changes: keys"),
        (
            "from pyspark import pipelines as dp\n"
            "dp.create_auto_cdc_flow(\n  't', 's', keys='id', sequence_by='a'\n)",
            "dp.create_auto_cdc_flow: keys",
        ),
        (
            "from dlt import apply_changes\n"
            "if True:\n  é = apply_changes('t', 's', keys=[], sequence_by='at')",
            "apply_changes: keys",
        ),
        ("import dlt as lake\nlake.create_target_table(1)", "lake.create_target_table: name"),
        ("import dlt\n@dlt.table(partition_cols='a')\ndef t(): pass", "@dlt.table: partition_cols"),
        ("import dlt\n@dlt.view(name=2)\ndef t(): pass", "@dlt.view: name"),
        ("import headrace as hr\nhr.create_streaming_table(1)", "hr.create_streaming_table: name"),
        (
            "import dlt\n@dlt.table(row_filter='x')\ndef t(): pass",
            "@dlt.table: the argument `row_filter` is not supported",
        ),
        ("import dlt as d\nd.update_flow()", "this version does not support d.update_flow"),
    ],
)
def test_an_error_names_the_function_as_the_file_does(load: Load, code: str, begins: str) -> None:
    with pytest.raises((ArgumentInvalidError, FeatureUnsupportedError, ExpectationInvalidError)) as caught:
        load(code)
    assert caught.value.summary.startswith(begins)


EMPTY = """
import dlt

dlt.create_streaming_table(
    "t", partition_cols=[], cluster_by=[], table_properties={}, expect_all={}, expect_all_or_drop={}
)
dlt.apply_changes(
    target="t",
    source="s",
    keys=["id"],
    sequence_by="at",
    column_list=["id", "at"],
    except_column_list=[],
    ignore_null_updates_column_list=[],
    track_history_column_list=[],
    track_history_except_column_list=(),
    stored_as_scd_type=%s,
)
"""


@pytest.mark.parametrize(("kind", "history"), [("1", None), ("2", ALL_COLUMNS)])
def test_an_empty_list_means_that_nothing_is_given(load: Load, kind: str, history: object) -> None:
    (flow,) = load(EMPTY % kind).flows
    assert isinstance(flow, AutoCdcFlow)
    assert (flow.history, flow.kept_if_null) == (history, None)


def test_a_snapshot_flow_takes_empty_lists_too(load: Load) -> None:
    code = (
        "import dlt\ndlt.create_streaming_table('t')\ndlt.apply_changes_from_snapshot('t', 's', keys=['id'],"
    )
    (flow,) = load(f"{code} stored_as_scd_type=1, track_history_column_list=[])").flows
    assert isinstance(flow, AutoCdcFlow) and flow.history is None


def test_an_empty_list_of_keys_is_an_error(load: Load) -> None:
    with pytest.raises(ArgumentInvalidError, match="with at least one"):
        load(EMPTY.replace('keys=["id"]', "keys=[]") % 1)
