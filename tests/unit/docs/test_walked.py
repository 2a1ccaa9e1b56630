"""No error code is forgotten: its remedy is walked, or a reason is written down."""

from __future__ import annotations

from headrace.errors import build_pages
from remedies.every import NOT_WALKED, SITUATIONS


def test_every_error_code_is_walked_or_has_a_reason() -> None:
    walked = {one.code for one in SITUATIONS}
    codes = set(build_pages())
    assert walked <= codes, walked - codes
    assert not walked & set(NOT_WALKED), "such a code needs no reason"
    assert walked | set(NOT_WALKED) == codes, codes - walked - set(NOT_WALKED)


def test_every_situation_has_a_title_of_its_own() -> None:
    ids = [one.id for one in SITUATIONS]
    assert len(set(ids)) == len(ids), sorted(one for one in ids if ids.count(one) > 1)
