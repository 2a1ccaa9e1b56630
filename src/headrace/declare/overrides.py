"""Values from the command line or a caller that lie over the spec, by dotted key."""

from __future__ import annotations

import difflib

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import ScalarNode

from headrace.declare.spec_faults import check_keys
from headrace.declare.spec_model import KAFKA_SETTINGS, Spec
from headrace.declare.yaml_source import Mapped, Scalar, Value, understood
from headrace.errors import SourceLocation, SpecUnknownKeyError
from headrace.model.secrets import Redactor, is_secret_key


def build_override(key: str, text: str, redactor: Redactor) -> Mapped:
    """One override as a spec of its own.

    Args:
        key: Such as ``storage``, ``runtime.memory`` or ``kafka.bootstrap.servers``; what follows
            ``kafka.`` and ``configuration.`` is one name, with its dots.
        text: The value, understood as a value of the spec's YAML would be.
        redactor: Learns a value that is secret.

    Raises:
        SpecUnknownKeyError: A spec has no such key.
    """
    if is_secret_key(key):
        redactor.add(text)
    place = SourceLocation(f"override of {key}", 0)
    first, _, rest = key.partition(".")
    value: Value = _scalar(text, place)
    if rest:
        value = Mapped({rest: value}, {rest: place}, place)
    built = Mapped({first: value}, {first: place}, place)
    if (meant := _meant(key)) is not None:
        raise SpecUnknownKeyError(
            f"Unknown key `{key}`; did you mean `{meant}`?",
            location=place,
            remedies=[f"write `{meant}`"],
            params={"key": key, "suggestion": meant},
        )
    check_keys(built, Spec)
    return built


def _meant(key: str) -> str | None:
    """The whole key behind a name whose mapping was left out, or behind one of a profile."""
    first, _, rest = key.partition(".")
    if first in Spec.model_fields:
        return None
    if first == "spark":
        return f"configuration.{key}"
    if first == "profiles":
        return rest.partition(".")[2] or None
    close = difflib.get_close_matches(key, sorted(KAFKA_SETTINGS), n=1, cutoff=0.85)
    return f"kafka.{close[0]}" if rest and close else None


def _scalar(text: str, place: SourceLocation) -> Scalar:
    """The text as one value, whatever it holds: quotes make it text, ``8`` and ``true`` are what they say."""
    yaml = YAML(typ="safe", pure=True)
    if text[:1] in ("'", '"'):
        try:
            node = yaml.compose(text)
        except YAMLError:
            return Scalar(text, text, place)
        if isinstance(node, ScalarNode):
            return Scalar(node.value, str(node.value), place)
    tag = yaml.resolver.resolve(ScalarNode, text, (True, False))
    return Scalar(text, understood(str(tag), text), place)
