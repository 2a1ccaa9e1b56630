"""Readers of topics."""

from __future__ import annotations

from headrace.errors import SourceLocation
from headrace.sources.answers import Sample
from headrace.sources.kafka.options import reader_options
from headrace.sources.kafka.sample import sample_topics
from headrace.sources.reader import Reader
from headrace.sources.requests import ReaderDefaults, ReadRequest, Sampling, SourceRead


class KafkaReader(Reader):
    """Readers of topics."""

    stand_in = "topic"

    def options(
        self, request: ReadRequest, location: SourceLocation, defaults: ReaderDefaults
    ) -> dict[str, str]:
        return reader_options(request, location, defaults)

    def sample(self, read: SourceRead, sampling: Sampling) -> Sample:
        return sample_topics(read, sampling)
