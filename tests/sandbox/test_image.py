"""The image that programs run in: its build, and what is inside."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from openmle_gym.errors import ConfigError, RunnerUnavailable
from openmle_gym.isolation.docker import DockerRunner
from openmle_gym.isolation.runner import PYTHON, RunSpec
from openmle_gym.jobs import MIB, Limits
from sandbox_service.image.build import CONTEXT, ImageConfig, build_command, build_image, run

ROOT = Path(__file__).parents[2]
IMAGE = "openmle/sandbox:cpu"


@pytest.fixture
def fake_docker(tmp_path: Path) -> Path:
    """A docker command that writes down what it was asked, has no buildx, and fails when the base is `bad`."""
    command = tmp_path / "docker"
    command.write_text(
        "#!/bin/sh\n"
        'echo "${DOCKER_BUILDKIT-} $*" >> "$0.log"\n'
        '[ "$1" = buildx ] && exit 1\n'
        'case "$*" in *BASE_IMAGE=bad*) exit 7;; esac\n'
        "echo building\n"
    )
    command.chmod(0o755)
    return command


def asked(docker: Path) -> list[str]:
    return Path(f"{docker}.log").read_text().splitlines()


def test_the_command_names_base_variant_tag_and_context() -> None:
    assert build_command("gpu", "base:1", "mine:2", "podman") == [
        "podman", "build", "--build-arg", "BASE_IMAGE=base:1", "--build-arg", "VARIANT=gpu", "--tag", "mine:2", str(CONTEXT),
    ]  # fmt: skip


def test_a_client_without_buildx_uses_the_classic_builder(
    fake_docker: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOCKER_BUILDKIT", raising=False)
    build_image("cpu", "base:1", "mine:2", str(fake_docker))
    command = " ".join(build_command("cpu", "base:1", "mine:2", str(fake_docker))[1:])
    assert asked(fake_docker) == [" buildx version", f"0 {command}"]
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "building\n")


def test_a_build_that_fails_and_a_command_that_is_not_there_are_told(fake_docker: Path) -> None:
    with pytest.raises(RunnerUnavailable, match=r"mine:2 on bad"):
        build_image("cpu", "bad", "mine:2", str(fake_docker))
    with pytest.raises(RunnerUnavailable, match="no-such-docker"):
        build_image("cpu", "base:1", "mine:2", "no-such-docker")


def test_a_dry_run_builds_nothing(fake_docker: Path) -> None:
    said = run(ImageConfig(variant="gpu", docker=str(fake_docker), dry_run=True))
    assert said.startswith(f"{fake_docker} build --build-arg BASE_IMAGE=python:3.11-slim --build-arg VARIANT=gpu ")
    assert "--tag openmle/sandbox:gpu" in said
    assert not Path(f"{fake_docker}.log").exists()


def test_a_wrong_setting_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="variant='tpu'"):
        ImageConfig(variant="tpu")
    with pytest.raises(ConfigError, match="base"):
        ImageConfig(base="")
    with pytest.raises(ConfigError, match="docker"):
        ImageConfig(docker="")


def test_the_script_builds_with_nothing_installed(fake_docker: Path) -> None:
    bare = {"PATH": os.environ["PATH"], "DOCKER": str(fake_docker), "PYTHON": sys.executable, "VARIANT": "gpu"}
    bare |= {"BASE_IMAGE": "base:1"}
    done = subprocess.run([ROOT / "scripts" / "build_image.sh"], env=bare, capture_output=True, text=True, check=True)
    assert done.stdout == "openmle/sandbox:gpu\n"
    assert "VARIANT=gpu --tag openmle/sandbox:gpu" in asked(fake_docker)[1]
    failed = subprocess.run([ROOT / "scripts" / "build_image.sh"], env=bare | {"BASE_IMAGE": "bad"}, check=False)
    assert failed.returncode == 3


def test_what_the_build_needs_is_only_the_standard_library() -> None:
    """CI builds the image before it installs anything."""
    code = "import sandbox_service.image.build, sys; print('pydantic' in sys.modules, 'docker' in sys.modules)"
    bare = {"PYTHONPATH": f"{ROOT}/openmle_gym/src:{ROOT}/sandbox_service/src"}
    done = subprocess.run([sys.executable, "-S", "-c", code], env=bare, capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def test_the_dockerfile_keeps_to_the_classic_builder() -> None:
    text = (CONTEXT / "Dockerfile").read_text()
    assert not re.search(r"^#\s*syntax=|--mount|<<|COPY --(?!from|chown)", text, re.MULTILINE)
    assert text.index("ARG BASE_IMAGE=python:3.11-slim") < text.index("FROM ${BASE_IMAGE}") < text.index("ARG VARIANT")


@pytest.mark.parametrize("variant", ["cpu", "gpu"])
def test_every_package_of_a_variant_is_pinned_and_none_comes_twice(variant: str) -> None:
    lines: list[str] = []
    for name in ("requirements.txt", f"requirements-{variant}.txt"):
        lines += [line for line in (CONTEXT / name).read_text().splitlines() if line and line[0] not in "#-"]
    assert all(re.fullmatch(r"[a-z-]+==[\d.]+", line) for line in lines), lines
    modules = [line.partition("==")[0].removesuffix("-cpu") for line in lines]
    assert len(set(modules)) == len(modules)
    assert {"numpy", "pandas", "scikit-learn", "lightgbm", "xgboost"} <= set(modules)
    assert ("torch" in modules) == (variant == "gpu")


@pytest.mark.docker
async def test_the_libraries_of_the_image_work_for_a_program() -> None:
    runner = DockerRunner(image=IMAGE)
    try:
        await runner.check()
    except RunnerUnavailable as error:
        pytest.skip(str(error))
    source = """
import lightgbm, numpy, pandas, scipy, statsmodels.api, xgboost
from sklearn.linear_model import LinearRegression
x = numpy.arange(40.0).reshape(-1, 1)
y = x[:, 0] > 19
for model in (LinearRegression(), lightgbm.LGBMRegressor(n_estimators=3, verbose=-1), xgboost.XGBRegressor(n_estimators=3)):
    print(model.fit(x, y).predict(x).shape)
import os
print(os.access("/opt/venv", os.W_OK))
"""
    result = await runner.run(
        RunSpec(argv=(PYTHON, "-c", source), limits=Limits(wall_seconds=300, memory_bytes=1024 * MIB))
    )
    assert (result.exit_code, result.log.text) == (0, "(40,)\n" * 3 + "False\n"), result.log.text
