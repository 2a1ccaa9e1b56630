"""Which topics the options of a reader mean."""

from __future__ import annotations

import pytest

from headrace.sources.kafka.subscription import Subscription, matching, shown, whole


def test_topics_are_named_matched_or_assigned() -> None:
    assert Subscription.of({"Subscribe": " a , b,, a"}).topics == ("a", "b")
    assert Subscription.of({"subscribepattern": " a.* "}).pattern == "a.*"
    assigned = Subscription.of({"assign": '{"a": [2, 0, 2], "b": [1]}'})
    assert (assigned.topics, assigned.partitions) == (("a", "b"), {"a": (0, 2), "b": (1,)})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "names no topic"),
        ({"subscribe": "a", "assign": "{}"}, "has subscribe and assign"),
        ({"subscribe": " , "}, "empty"),
        ({"subscribePattern": " "}, "empty"),
        ({"subscribePattern": "a("}, "cannot be compiled"),
        ({"subscribePattern": r"\p{L}+"}, "cannot be compiled"),
        ({"subscribePattern": "[a-z&&[^b]]"}, "cannot be compiled"),
        ({"assign": "a"}, "assign"),
        ({"assign": "{}"}, "assign"),
        ({"assign": '{"a": 0}'}, "`a` has 0"),
        ({"assign": '{"a": []}'}, "`a` has []"),
        ({"assign": '{"a": [-1]}'}, "`a` has [-1]"),
        ({"assign": '{"a": [true]}'}, "`a` has [true]"),
    ],
)
def test_what_names_no_topics_is_said(options: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError) as caught:
        Subscription.of(options)
    assert problem in str(caught.value)


def test_a_pattern_is_found_in_a_name_as_spark_finds_it() -> None:
    topics = ["orders", "my-orders-2", "__orders", "__consumer_offsets", "sales"]
    assert matching("orders", topics) == ("__orders", "my-orders-2", "orders")
    assert matching(whole("orders|sales"), topics) == ("orders", "sales")
    assert "__consumer_offsets" not in matching(".*", topics)
    assert (shown(whole("a.*")), shown("a.*")) == ("a.*", "a.*")
