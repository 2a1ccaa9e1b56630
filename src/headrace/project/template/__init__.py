"""The example pipeline that `headrace init` and the demo write."""
