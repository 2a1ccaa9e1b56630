"""The Avro arguments of `read_kafka`: the reader's schema, and the schemas of the registry."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.declare.arguments import Arguments
from headrace.declare.registry import ActivePipeline
from headrace.errors import SchemaInvalidError
from headrace.sources.schemas import SchemaFile

if TYPE_CHECKING:
    from headrace.sources.avro_decoder import AvroDecoder
    from headrace.sources.schema_registry import SchemaRegistry


@dataclass(frozen=True)
class AvroRead:
    """The arguments, as the user gave them."""

    schema: Any  # the reader's schema: JSON text or a file
    registry: Any  # the address of the schema registry; True for the profile's
    subject: Any

    def decoder(
        self, active: ActivePipeline, arguments: Arguments, topics: str | None, format: str
    ) -> AvroDecoder | None:
        """The decoder of the records; None if the format is not Avro.

        Args:
            topics: The topics, separated by commas; None if a pattern is given.

        Raises:
            ArgumentInvalidError: An argument is wrong or missing.
            SchemaInvalidError: The reader's schema is not an Avro record.
            TransientError: The schema registry does not answer.
        """
        if format == "avro":
            return self._decoder(active, arguments, topics)
        for argument, value in (("schema_registry", self.registry), ("subject", self.subject)):
            if value is not None:
                raise arguments.invalid(argument, 'works with format="avro" only', f"remove {argument}")

        return None

    def _decoder(self, active: ActivePipeline, arguments: Arguments, topics: str | None) -> AvroDecoder:
        from headrace.sources.avro_decoder import AvroDecoder

        reader = None if self.schema is None else self._reader(active, arguments)
        registry = self._registry(active, arguments, has_reader=reader is not None)
        if registry is None:
            if reader is None:
                problem = 'is missing: format="avro" needs a schema, a schema registry, or both'
                raise arguments.invalid("schema", problem, 'write schema="schemas/orders.avsc"')
            if self.subject is not None:
                raise arguments.invalid("subject", "needs a schema registry", "add schema_registry=..")
            return AvroDecoder(reader)
        subjects = self._subjects(arguments, topics)
        if reader is None and len(subjects) > 1:
            problem = "is missing: topics with a subject each have no common latest version"
            raise arguments.invalid("schema", problem, "give the reader's schema, or read one topic")
        versions = [one for subject in subjects for one in registry.load_versions(subject)]
        return AvroDecoder(
            reader
            if reader is not None
            else _checked(versions[-1].text, arguments, f"subject {subjects[0]}"),
            {one.id: one.text for one in versions},
        )

    def _reader(self, active: ActivePipeline, arguments: Arguments) -> str:
        given = self.schema
        text = str(given) if isinstance(given, Path) else arguments.text("schema", given).strip()
        if text.startswith("{"):
            return _checked(text, arguments, "the argument schema")
        try:
            found = SchemaFile(text, (active.settings.root / text).read_text(encoding="utf-8-sig"))
        except (OSError, UnicodeDecodeError) as error:
            problem = f"names the file {text}, which cannot be read: {error}"
            raise arguments.invalid("schema", problem, "write Avro JSON, or name a file of it") from error
        active.schema_files[found.path] = found.digest
        return _checked(found.text, arguments, f"the schema file {text}")

    def _registry(
        self, active: ActivePipeline, arguments: Arguments, *, has_reader: bool
    ) -> SchemaRegistry | None:
        from headrace.sources.schema_registry import URL, USER_INFO, SchemaRegistry

        settings = active.settings.kafka.settings
        wanted = self.registry
        if wanted is None or isinstance(wanted, bool):
            # A schema without a registry means records without the wire format.
            if wanted is False or (wanted is None and (has_reader or URL not in settings)):
                return None
            if URL not in settings:
                problem = f"is True, but the profile `{active.settings.profile}` has no registry"
                raise arguments.invalid(
                    "schema_registry", problem, f"set kafka: {{{URL}: ..}} in headrace.yml"
                )
            wanted = settings[URL]
        address = arguments.text("schema_registry", wanted)
        if not address.startswith(("http://", "https://")):
            problem = f"must be an address, not {address!r}"
            raise arguments.invalid("schema_registry", problem, 'write "https://registry.example:8081"')
        registry = SchemaRegistry.at(address, settings.get(USER_INFO))
        if registry.user is not None:
            active.settings.redactor.add(registry.user)
            active.settings.redactor.add(registry.user.partition(":")[2])
        return registry

    def _subjects(self, arguments: Arguments, topics: str | None) -> list[str]:
        if self.subject is not None:
            return [arguments.text("subject", self.subject)]
        if topics is None:
            raise arguments.invalid("subject", "is missing: a pattern of topics has no subject of its own")
        return [f"{topic}-value" for topic in topics.split(",")]


def _checked(text: str, arguments: Arguments, where: str) -> str:
    """An Avro schema, which must be a record with fields."""
    problem = "it is not a record with fields"
    try:
        value = json.loads(text)
    except ValueError as error:
        value, problem = None, f"it is not JSON: {error}"
    if not (isinstance(value, dict) and value.get("type") == "record" and value.get("fields")):
        raise SchemaInvalidError(
            f"{where} is not an Avro schema of a record",
            location=arguments.location,
            facts=[problem],
            remedies=['write such as {"type": "record", "name": "Order", "fields": [..]}'],
            params={"schema": text[:200]},
        )
    return text
