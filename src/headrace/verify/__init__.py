"""The proof: tables, logs, checkpoints and the broker are compared, without Spark."""

from headrace.verify.proof import verify_pipeline
from headrace.verify.report import Finding, Grade, GradeReport, Proof

__all__ = ["Finding", "Grade", "GradeReport", "Proof", "verify_pipeline"]
