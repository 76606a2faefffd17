"""Each layer installs alone, from a clone, into a bare environment, and its command works there."""

import subprocess
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("targets", "command", "shown"),
    [
        (["./openmle_gym"], ["openmle-gym", "--help"], "grade a submission"),
        (
            ["./openmle_gym", "./openmle_evo"],
            ["openmle-evo", "search", "--help"],
            "policy=PROFILE, one of: frontis_30b",
        ),
        ([".[erl]"], ["openmle-erl", "--help"], "advantages"),
        (["./openmle_gym", "./sandbox_service"], ["openmle-sandbox", "serve", "--help"], "task_roots="),
    ],
    ids=["gym", "evo", "erl", "sandbox"],
)
def test_a_layer_installs_alone_and_its_command_answers(
    targets: list[str], command: list[str], shown: str, tmp_path: Path
) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    binaries = tmp_path / "env" / "bin"
    pip = [binaries / "python", "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    run(*pip, "--constraint", "constraints.txt", *targets, cwd=ROOT)
    assert shown in run(binaries / command[0], *command[1:], cwd=tmp_path)
    listed = run(binaries / "python", "-m", "pip", "list", "--format=freeze", cwd=tmp_path).lower()
    assert not any(heavy in listed for heavy in ("torch", "ray=", "scikit-learn", "transformers"))
