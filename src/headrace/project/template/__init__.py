"""The example pipeline that `headrace init` and the demo write."""

from headrace.project.template.files import (
    TOPIC,
    files_around,
    pipeline_name,
    template_files,
    write_new,
    write_template,
)

__all__ = ["TOPIC", "files_around", "pipeline_name", "template_files", "write_new", "write_template"]
