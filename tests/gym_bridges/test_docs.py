"""The worked example of docs/task_package.md, run as it stands there."""

import asyncio
import json
import re
import sys
from pathlib import Path

from openmle_gym.grading import grade_submission
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.task import load_package

PAGE = Path(__file__).parents[2] / "docs" / "task_package.md"


async def test_the_worked_example_makes_the_package_that_it_says(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (said,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    (tmp_path / "make_task.py").write_text(source)
    command = [sys.executable, str(tmp_path / "make_task.py"), str(tmp_path / "prices")]
    assert await (await asyncio.create_subprocess_exec(*command)).wait() == 0
    package = load_package(tmp_path / "prices")
    assert not package.inferred
    sample = (package.public_dir / "sample_submission.csv").read_bytes()
    grade = await grade_submission(package, sample, splits=("all",), runner=ProcessRunner(allow_no_isolation=True))
    assert {"accepted": grade.accepted, "scores": grade.scores} == json.loads(said)


def test_the_page_names_every_field_of_the_manifest() -> None:
    from openmle_gym.manifest import Manifest

    text = PAGE.read_text(encoding="utf-8")
    for field in Manifest.model_fields:
        assert f"`{field}" in text or f"`{field}." in text or field == "schema_version", field
