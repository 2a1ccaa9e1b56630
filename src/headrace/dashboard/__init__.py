"""The dashboard of `headrace ui`: pages about the pipelines of a storage, without a JVM. It only reads."""
