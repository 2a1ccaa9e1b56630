"""The main job, shown on a real broker: a producer, the pipeline, a SIGKILL, and the proof."""
