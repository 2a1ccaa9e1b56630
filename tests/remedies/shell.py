"""Statements of `headrace sql` that name what exists, or what does not."""

from remedies.walk import Walk, situation


@situation("SQL_NAME_TAKEN", spoils=True)
def a_table_is_created_again(walk: Walk) -> None:
    create = "CREATE TABLE shelf (id LONG)"
    walk.goes_well(f"headrace sql -e '{create}'")
    shown = walk.fails(f"headrace sql -e '{create}'", "shelf")
    assert "CREATE TABLE IF NOT EXISTS default.shelf .." in shown.text, shown.text
    walk.goes_well("headrace sql -e 'CREATE TABLE IF NOT EXISTS default.shelf (id LONG)'")
    assert "its rows and files are kept:   DROP TABLE default.shelf" in shown.text, shown.text
    walk.goes_well("headrace sql -e 'DROP TABLE default.shelf'")
    walk.goes_well(f"headrace sql -e '{create}'")
    walk.is_healthy()


@situation("SQL_NAME_UNKNOWN", spoils=True)
def a_misspelt_stream_is_stopped(walk: Walk) -> None:
    shown = walk.fails("headrace sql -e 'DROP STREAM loads'", "loads")
    assert "in ./lake" in shown.text and "streams: none" in shown.text, shown.text
    assert "headrace sql --storage PATH" in shown.text, shown.text
    walk.goes_well("headrace sql --storage ./lake -e 'SHOW STREAMS'")


@situation("SQL_INVALID")
def a_statement_of_the_shell_is_incomplete(walk: Walk) -> None:
    walk.fails("headrace sql -e 'CREATE TABLE shelf (id'")
    walk.goes_well("headrace sql -e 'SELECT count(*) FROM visits'")
