"""Mistakes in the spec, its profiles and its files of values."""

from remedies.walk import Walk, mistake, situation

SPEC = "headrace.yml"

mistake(
    "MULTIPLE_PIPELINE_SPEC_FILES_FOUND", "a second spec beside the first", {"headrace.yaml": "name: other\n"}
)


@situation("MULTIPLE_PIPELINE_SPEC_FILES_FOUND")
def the_command_names_one_of_two_specs(walk: Walk) -> None:
    walk.edit({"headrace.yaml": "name: other\n"})
    walk.follows(walk.fails("headrace plan visits"), "headrace plan visits --spec")
    walk.follows(walk.fails("headrace run"), "headrace run --spec")
    walk.edit({"headrace.yaml": None})
    walk.is_healthy()


@situation("SPEC_NOT_FOUND")
def a_folder_without_a_spec(walk: Walk) -> None:
    (walk.folder.root / "elsewhere").mkdir()
    shown = walk.fails("headrace plan --project elsewhere", "elsewhere")
    walk.follows(shown, "headrace init ")
    walk.goes_well("headrace plan --project elsewhere")


mistake(
    "SPEC_INVALID",
    "a line that is missing",
    {SPEC: "storage: ./lake\n"},
    {SPEC: "{spec}"},
    at=f"{SPEC}:1",
    names="name:",
)
mistake(
    "SPEC_INVALID",
    "a time without a unit that is known",
    {SPEC: "{spec}trigger:\n  interval: 5 moons\n"},
    {SPEC: "{spec}trigger:\n  interval: 5 seconds\n"},
    at=(SPEC, "moons"),
    names="seconds",
)
mistake(
    "SPEC_UNKNOWN_KEY", "a misspelt key", {SPEC: "{spec}viws: {interval: 1 s}\n"}, "viws", at=(SPEC, "viws")
)
mistake(
    "SPEC_UNKNOWN_KEY",
    "a misspelt setting of Kafka",
    {SPEC: "{spec}kafka: {bootstrap.server: 127.0.0.1:9}\n"},
    "bootstrap.server",
    at=(SPEC, "bootstrap"),
)
mistake(
    "SPEC_VARIABLE_UNSET",
    "a variable that is not set",
    {SPEC: "{spec}configuration: {region: '${WALK_REGION}'}\n"},
    {".env": "WALK_REGION=eu\n"},
    {SPEC: "{spec}configuration: {region: '${WALK_REGION:-eu}'}\n"},
    at=(SPEC, "WALK_REGION"),
    names=".env\n        or give a default in the spec: ${WALK_REGION:-",
)
mistake(
    "SPEC_FILE_UNREADABLE",
    "a file with a value that does not exist",
    {SPEC: "{spec}configuration: {region: '${file:region.txt}'}\n"},
    {"region.txt": "eu"},
    at=(SPEC, "region.txt"),
)
mistake(
    "DOTENV_INVALID",
    "a line that is not an assignment",
    {".env": "# of the walk\nWALK_REGION eu\n"},
    {".env": "# of the walk\nWALK_REGION=eu\n"},
    at=".env:2",
    names="NAME=value",
)


@situation("PROFILE_UNKNOWN")
def a_misspelt_profile(walk: Walk) -> None:
    walk.edit({SPEC: walk.folder.spec() + "profiles: {production: {views: {interval: 1 s}}}\n"})
    shown = walk.fails("headrace plan --profile prodution", SPEC)
    assert shown.suggestions, shown.text
    walk.goes_well(f"headrace plan --profile {shown.suggestions[0]}")
    walk.edit({SPEC: walk.folder.spec()})


mistake(
    "STORAGE_UNSUPPORTED",
    "storage in an object store that is not supported",
    {SPEC: "name: walk\nstorage: gs://bucket/lake\n"},
    {SPEC: "name: walk\nstorage: ./lake\n"},
    at=f"{SPEC}:2",
    names="./lake",
)
mistake(
    "PIPELINE_FILES_MISSING",
    "a pattern that no file matches",
    {SPEC: "{spec}libraries:\n  - glob: {include: pipelines/**}\n"},
    {SPEC: "{spec}libraries:\n  - glob: {include: transformations/**}\n"},
    at=f"{SPEC}:4:21",
    names="file into pipelines",
)
mistake(
    "OPTION_UNKNOWN",
    "a misspelt setting of Spark in the spec",
    {SPEC: "{spec}configuration:\n  spark.sql.shufle.partitions: 2\n"},
    "spark.sql.shufle.partitions",
    at=(SPEC, "shufle"),
)
