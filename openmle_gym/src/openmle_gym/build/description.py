"""`description.txt`: the task's statement, and what its public files hold, as they came out.

It is put together here and not by the program that makes the files, so what it says of them is true. The package's
prepare.py writes it too, at its end, so that the package can be made again from itself.
"""

from pathlib import Path

from openmle_gym.build.spec import TaskSpec
from openmle_gym.manifest import Columns
from openmle_gym.metrics import METRICS
from openmle_gym.preview import preview_data

_EXAMPLE_ROWS = 3
_PREDICTIONS = {
    "number": "a number",
    "probability": "a probability, between 0 and 1",
    "label": "a label as in the training rows",
    "text": "a text",
}


def describe_package(spec: TaskSpec, public: Path) -> str:
    """The whole text."""
    sample = (public / "sample_submission.csv").read_text(encoding="utf-8", errors="replace").splitlines()
    targets = ", ".join(f"`{name}`" for name in spec.target)
    over = ""
    if len(spec.target) > 1 and spec.metric in METRICS and METRICS[spec.metric].columns == "each":
        over = ", averaged over the target columns"
    definition = f" {spec.metric_definition.strip()}" if spec.metric_definition else ""
    return "\n".join(
        [
            f"# {spec.title}",
            "",
            "## Description",
            "",
            spec.statement.strip(),
            "",
            f"Predict {targets} of the rows of `test.csv`, having learned from `train.csv`.",
            "",
            "## Evaluation",
            "",
            f"Submissions are scored by {spec.metric}{over}.{definition} "
            f"{'Higher' if spec.higher_is_better else 'Lower'} is better.",
            "",
            "## Submission File",
            "",
            f"One row for each {', '.join(f'`{name}`' for name in spec.id)} of `test.csv`, with "
            f"{_PREDICTIONS.get(spec.prediction, 'a value')} for {targets}:",
            "",
            "```",
            *sample[: _EXAMPLE_ROWS + 1],
            "```",
            "",
            "## Files",
            "",
            preview_data(public, Columns(id=spec.id, target=spec.target)),
            "",
        ]
    )


def with_description(source: str, description: str) -> str:
    """A prepare.py that writes the description too."""
    lines = "".join(f"    {line!r}\n" for line in description.splitlines(keepends=True))
    return f"""{source.rstrip()}


DESCRIPTION = (
{lines})
_write_tables = prepare


def prepare(raw, public, private):
    _write_tables(raw, public, private)
    (public / "description.txt").write_text(DESCRIPTION, encoding="utf-8")
"""
