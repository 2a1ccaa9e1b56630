"""Options of readers of files that a format does not have."""

from __future__ import annotations

import pytest

from headrace.errors import ArgumentInvalidError
from headrace.sources.files.options import check_options


def test_auto_loader_passes_options_without_an_effect() -> None:
    options = {"sampleSize": "9", "compression": "gzip", "multiline": "true", "header": "true"}
    passed = check_options("cloudFiles", "json", options, passes_unknown=True)
    assert passed == ["sampleSize", "compression", "header"]


@pytest.mark.parametrize(
    ("format", "name", "remedy"),
    [
        ("json", "multiLines", "did you mean `multiLine`?"),
        ("csv", "headers", "did you mean `header`?"),
        ("csv", "skipRows", "leave it out"),
        ("text", "encoding", "leave it out"),
        ("json", "cloudFiles.shemaLocation", "leave it out"),
    ],
)
def test_auto_loader_refuses_options_that_would_change_rows(format: str, name: str, remedy: str) -> None:
    with pytest.raises(ArgumentInvalidError) as caught:
        check_options("cloudFiles", format, {name: "1"}, passes_unknown=True)
    assert caught.value.summary == f"cloudFiles: {format} files have no option `{name}`"
    assert caught.value.remedies == (remedy,)


def test_other_readers_refuse_every_unknown_option() -> None:
    with pytest.raises(ArgumentInvalidError):
        check_options("hr.read_files", "json", {"sampleSize": "9"})
