"""Changes to an SQL text, and the way back from its characters to the user's."""

from __future__ import annotations

from headrace.model.queries import Edit, edited, original_index

TEXT = "SELECT a FROM main.sales.orders JOIN b ON x"


def test_edits_apply_together() -> None:
    edits = [Edit(37, 38, "`s`.`b`"), Edit(14, 31, "`sales`.`orders`")]
    assert edited(TEXT, edits) == "SELECT a FROM `sales`.`orders` JOIN `s`.`b` ON x"


def test_a_place_in_the_changed_text_leads_back_to_the_users() -> None:
    edits = [Edit(14, 31, "o"), Edit(35, 36, "longer")]
    changed = edited(TEXT, edits)
    assert original_index(changed.index("SELECT"), edits) == 0
    assert original_index(changed.index("ON x"), edits) == TEXT.index("ON x")
    assert original_index(14, edits) == 14
