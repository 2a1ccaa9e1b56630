"""Ctrl-C in a query of `headrace sql`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.model.project import ProjectSettings
from headrace.shell import queries
from headrace.shell.definitions import Definitions
from headrace.shell.queries import Answer, Queries


def test_ctrl_c_cancels_the_jobs_of_a_query_and_waits_for_its_end(
    monkeypatch: pytest.MonkeyPatch, make_project: Callable[[], ProjectSettings]
) -> None:
    settings = make_project()
    cancelled, ended = threading.Event(), threading.Event()
    context = SimpleNamespace(addJobTag=lambda tag: None, cancelJobsWithTag=lambda tag: cancelled.set())
    session: Any = SimpleNamespace(sparkContext=context)

    def work() -> Answer:
        assert cancelled.wait(60)
        ended.set()
        return Answer()

    def interrupted() -> Iterator[Any]:
        yield KeyboardInterrupt()
        while True:
            yield None

    failures = interrupted()

    def waiting(*arguments: Any) -> Any:
        if (failure := next(failures)) is not None:
            raise failure
        return wait(*arguments)

    monkeypatch.setattr(queries, "wait", waiting)
    shell = Queries(Definitions(settings))
    with pytest.raises(KeyboardInterrupt):
        shell._interruptible(session, work)
    assert ended.is_set()
    assert shell._interruptible(session, lambda: Answer(note="next")).note == "next"
    shell.close()
