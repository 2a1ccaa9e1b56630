"""The engine: a JVM with Spark that stays in the background, so that the next command starts no JVM."""
