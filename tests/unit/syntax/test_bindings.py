"""Queries keep the values of their declaration; names that are bound later are found at the call."""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

from headrace.errors import SourceLocation
from headrace.model.queries import PythonQuery
from headrace.syntax.bindings import bind, find_rebound

HERE = SourceLocation("tables.py", 1)
Run = Callable[..., list[PythonQuery]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run a file's text in which ``declare(function)`` binds a query, and give the queries."""

    def execute(source: str, **names: Any) -> list[PythonQuery]:
        queries: list[PythonQuery] = []

        def declare(function: Any) -> Any:
            queries.append(bind(function, HERE))
            return function

        module = ModuleType("tables")
        monkeypatch.setitem(sys.modules, "tables", module)
        module.__dict__.update(declare=declare, __file__="/shop/tables.py", **names)
        exec(compile(source, "/shop/tables.py", "exec"), module.__dict__)
        return queries

    yield execute


def values(queries: list[PythonQuery]) -> list[Any]:
    return [query.function() for query in queries]


def test_a_loop_at_module_level_binds_each_value(run: Run) -> None:
    assert values(run("for k in [1, 2, 3]:\n    @declare\n    def f(): return k")) == [1, 2, 3]


def test_a_loop_in_a_function_binds_each_value(run: Run) -> None:
    source = """
def make():
    for k in [1, 2, 3]:
        @declare
        def f(): return k
make()
"""
    assert values(run(source)) == [1, 2, 3]


def test_functions_within_the_query_see_its_values(run: Run) -> None:
    source = """
for k in [1, 2]:
    @declare
    def f():
        class Inner:
            value = k
        def nested(): return k
        return [k for _ in range(1)], (lambda: k)(), nested(), Inner.value
"""
    assert values(run(source)) == [([1], 1, 1, 1), ([2], 2, 2, 2)]


def test_names_that_are_bound_later_are_found_at_the_call(run: Run) -> None:
    source = """
@declare
def first(): return even(4), later
def even(n): return n == 0 or odd(n - 1)
def odd(n): return n != 0 and even(n - 1)
later = 7
"""
    assert values(run(source)) == [(True, 7)]


def test_names_of_an_enclosing_function_that_are_bound_later_are_found(run: Run) -> None:
    source = """
def make():
    @declare
    def f(): return late()
    def late(): return 5
make()
"""
    assert values(run(source)) == [5]


def test_a_name_that_is_never_bound_is_a_name_error(run: Run) -> None:
    (query,) = run("@declare\ndef f(): return nowhere")
    with pytest.raises(NameError, match="nowhere"):
        query.function()


def test_the_binding_is_kept_and_not_a_copy_of_the_object(run: Run) -> None:
    source = """
columns = []
@declare
def f(): return columns
columns.append("id")
kept = columns
columns = None
"""
    (query,) = run(source)
    assert query.function() is query.function.__globals__["kept"]
    assert query.function() == ["id"]


def test_a_decorated_query_sees_the_values_of_its_declaration(run: Run) -> None:
    source = """
def logged(f):
    @functools.wraps(f)
    def wrapper(*args): return f(*args)
    return wrapper
def plain(f):
    def wrapper(): return f()
    return wrapper
for k in [1, 2]:
    @declare
    @logged
    @plain
    def f(): return k
"""
    assert values(run(source, functools=functools)) == [1, 2]


def test_methods_partials_and_defaults_keep_their_values(run: Run) -> None:
    source = """
class Reader:
    def __init__(self, n): self.n = n
    def read(self): return self.n, k
def f(n): return n, k
for k in [1, 2]:
    declare(Reader(k).read)
    declare(functools.partial(f, k))
    declare(lambda n=k: (n, k))
    declare(lambda *, n=k: (n, k))
"""
    assert values(run(source, functools=functools)) == [(1, 1)] * 4 + [(2, 2)] * 4


def test_globals_that_functions_assign_stay_shared(run: Run) -> None:
    source = """
count, cache = 0, None
def fill():
    global cache
    cache = cache or "filled"
@declare
def f():
    global count
    count += 1
    fill()
    return count, cache
@declare
def g(): return fill(), cache
def seen(): return count
"""
    first, second = run(source)
    assert (first.function(), first.function()) == ((1, "filled"), (2, "filled"))
    assert second.function() == (None, "filled")
    assert first.function.__globals__["seen"]() == 2


def test_variables_of_an_enclosing_function_that_the_query_assigns_stay_shared(run: Run) -> None:
    source = """
def make():
    calls = 0
    @declare
    def f():
        nonlocal calls
        calls += 1
        return calls
    declare(lambda: calls)
make()
"""
    first, second = run(source)
    assert (first.function(), first.function(), second.function()) == (1, 2, 0)


def test_the_function_itself_stays_as_it_was(run: Run) -> None:
    source = """
for k in [1, 2]:
    @declare
    def f():
        \"\"\"Rows.\"\"\"
        return k
    f.mark = k
    kept = f
k = 9
"""
    first, _ = run(source)
    module = sys.modules["tables"]
    assert module.kept() == 9
    assert pickle.loads(pickle.dumps(module.kept)) is module.kept
    bound = first.function
    assert (bound.__name__, bound.__doc__, bound.mark) == ("f", "Rows.", 1)  # type: ignore[attr-defined]


def test_a_helper_that_reads_a_rebound_global_is_found(run: Run) -> None:
    source = """
schema, same = "id LONG", 1
def above(): return schema, same
for k in [1, 2]:
    @declare
    def f(): return above(), Tools.of(), below()
class Tools:
    @staticmethod
    def of(): return schema
def below(): return k, Tools
schema = "id STRING"
"""
    first, last = run(source)
    found = {(one.helper, one.name) for one in find_rebound(first, None)}
    assert found == {("above", "schema"), ("of", "schema"), ("below", "k")}
    assert {one.name for one in find_rebound(last, None)} == {"schema"}


def test_what_helpers_assign_or_do_not_read_is_not_reported(run: Run) -> None:
    source = """
cache, unread = None, 1
def fill():
    global cache
    cache = 1
    return cache, frame().unread
def frame(): return declare
@declare
def f(): return fill()
fill
cache, unread = 2, 2
"""
    (query,) = run(source)
    assert list(find_rebound(query, None)) == []


def test_a_helper_of_another_module_is_followed(run: Run) -> None:
    helpers = ModuleType("helpers")
    helpers.__dict__["__file__"] = "/shop/helpers.py"
    exec(compile("k = 0\ndef make(): return k", "/shop/helpers.py", "exec"), helpers.__dict__)
    source = """
for n in [1, 2]:
    helpers.k = n
    @declare
    def f(): return helpers.make()
"""
    first, last = run(source, helpers=helpers)
    assert [(one.helper, one.name) for one in find_rebound(first, None)] == [("make", "k")]
    assert list(find_rebound(last, None)) == []
