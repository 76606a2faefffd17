"""Which packages a candidate program can count on: asked of the place where programs run, by a program."""

import json
import re

from openmle_gym.evaluate import JobSettings
from openmle_gym.jobs import Executor, JobRequest
from openmle_gym.program import program_id

KNOWN = (
    "catboost",
    "keras",
    "lightgbm",
    "numpy",
    "opencv-python-headless",
    "pandas",
    "pillow",
    "polars",
    "pyarrow",
    "scikit-image",
    "scikit-learn",
    "scipy",
    "statsmodels",
    "tensorflow",
    "timm",
    "torch",
    "torchaudio",
    "torchvision",
    "transformers",
    "xgboost",
    "xgboost-cpu",
)
"""What a prompt names, where it is installed."""
MARK = "installed packages: "
PROGRAM = f"""\
import json
from importlib import metadata

found = {{}}
for name in {list(KNOWN)!r}:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
print({MARK!r} + json.dumps(found))
"""


async def installed_packages(executor: Executor, settings: JobSettings) -> tuple[str, ...]:
    """The known packages that are installed where the executor runs programs, as `name version`.

    Raises:
        InfrastructureError: The program could not be run.
    """
    result = await executor.run(
        JobRequest(
            name="installed packages",
            code=PROGRAM,
            data_dir=settings.data_dir,
            timeout_seconds=max(60.0, settings.timeout_seconds),
            resource_type=settings.resource_type,
            priority=1,
            labels={"purpose": "installed packages", "program_id": program_id(PROGRAM)},
        )
    )
    found = re.search(rf"^{MARK}(\{{.*\}})$", result.run_log, re.MULTILINE)
    return tuple(f"{name} {version}" for name, version in json.loads(found[1]).items()) if found else ()
