"""Property tests: the same examples in each run, and no time limit for one example on a busy machine."""

from hypothesis import settings

settings.register_profile("headrace", deadline=None, derandomize=True, max_examples=60, database=None)
settings.load_profile("headrace")
