"""A remedy works as it is printed, also where the pipeline was named by an option."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from headrace.cli.output import TextOutput, locate_remedies, named_options
from headrace.errors import FlowFailedError, PlanFailedError, TopicNotFoundError
from unit.cli.conftest import Call


@pytest.mark.parametrize(
    ("remedy", "located"),
    [
        ("headrace broker start", "headrace broker start --project shop"),
        (
            "create it:   headrace broker topics create orders",
            "create it:   headrace broker topics create orders --project shop",
        ),
        ("headrace explain TOPIC_NOT_FOUND", "headrace explain TOPIC_NOT_FOUND"),
        ("headrace engine stop", "headrace engine stop"),
        ("headrace run --project other", "headrace run --project other"),
        ("headrace run orders   (orders.py:6)", "headrace run orders   (orders.py:6)"),
        ("did you mean `orders`?", "did you mean `orders`?"),
    ],
)
def test_commands_name_the_pipeline(remedy: str, located: str) -> None:
    error = TopicNotFoundError("no topic", remedies=[remedy])
    assert locate_remedies(error, "--project shop").remedies == (located,)
    assert locate_remedies(error, "") is error
    failed = locate_remedies(PlanFailedError([error, error]), "--project shop")
    assert isinstance(failed, PlanFailedError)
    assert failed.errors[0].remedies == (located,)
    assert not failed.of_all.remedies, "they are printed once, with their errors"


def test_options_are_as_the_user_types_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"project": tmp_path / "my shop", "profile": "prod", "storage": None}
    assert named_options(given) == "--project 'my shop' --profile prod"
    assert named_options({"project": Path("/srv/shop")}) == "--project /srv/shop"


def test_the_command_line_prints_them(headrace: Call, tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/headrace.yml").write_text("name: shop\n")
    arguments = ("broker", "topics", "delete", "orders", "--project", "shop")
    assert ":   headrace broker topics list --project shop\n" in headrace(*arguments).err
    assert headrace(*arguments, "--json").data["error"]["remedies"] == [
        "list the topics:   headrace broker topics list --project shop"
    ]


def test_a_reset_that_needs_a_start_names_the_flows_that_were_typed(headrace: Call, tmp_path: Path) -> None:
    found = headrace("reset", "orders", "big", "--allow-duplicates", "--json").data["error"]["remedies"]
    assert "headrace reset orders big --from earliest --allow-duplicates" in found[1]
    found = headrace("reset", "orders", "--from", "7", "--json").data["error"]["remedies"]
    assert found[0].endswith(":   headrace checkpoint show orders")


def test_a_trace_that_is_printed_is_not_advised() -> None:
    error = FlowFailedError("x", remedies=["correct it", "print the stack trace:   headrace run --debug"])
    screens = []
    for debug in (False, True):
        screen = io.StringIO()
        TextOutput(stdout=screen, stderr=screen, debug=debug).error(error)
        screens.append(screen.getvalue())
    assert "--debug" in screens[0] and "--debug" not in screens[1] and "correct it" in screens[1]
