"""The example pipeline that `headrace init` and the demo write."""

from headrace.project.template.files import TOPIC, pipeline_name, template_files, write_template

__all__ = ["TOPIC", "pipeline_name", "template_files", "write_template"]
