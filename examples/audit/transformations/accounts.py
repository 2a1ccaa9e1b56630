"""An audit table has one row for each change of a row."""

import headrace as hr


@hr.temporary_view
def account_changes():
    schema = "id LONG, balance LONG, version LONG, op STRING"
    return hr.read_kafka("account-changes", format="json", schema=schema)


hr.create_streaming_table("accounts", comment="The current row of each account")
hr.create_auto_cdc_flow(
    target="accounts",
    source="account_changes",
    keys=["id"],
    sequence_by="version",
    apply_as_deletes="op = 'close'",
    except_column_list=["op"],
)


@hr.table(table_properties={"delta.appendOnly": "true"})
def accounts_audit():
    """Each change of an account: its values before and after, and the commit that made it."""
    changes = hr.read_changes("accounts", images="all")
    return changes.selectExpr(
        "id",
        "balance",
        "version",
        "_change_type AS change",
        "_commit_version AS changed_in",
        "_commit_timestamp AS changed_at",
    )
