"""The proof: tables, logs, checkpoints and sources are compared, without Spark."""

from headrace.verify.report import Finding, Grade, GradeReport, Proof

__all__ = ["Finding", "Grade", "GradeReport", "Proof"]
