"""Builds the image in which candidate programs run. Needs nothing but Python and a docker command."""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from openmle_gym.errors import ConfigError, RunnerUnavailable

CONTEXT = Path(__file__).parent
VARIANTS = ("cpu", "gpu")


@dataclass
class ImageConfig:
    """The settings of `openmle-sandbox image build`."""

    variant: str = "cpu"
    """cpu, or gpu, which adds PyTorch with CUDA and is several GB larger."""
    base: str = "python:3.11-slim"
    """The image to build on: Debian-like, with Python 3.11 and venv."""
    tag: str = ""
    """The name of the result; empty is openmle/sandbox:<variant>."""
    docker: str = "docker"
    """The docker command."""
    dry_run: bool = False
    """Whether to print the command instead of running it."""

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise ConfigError(f"variant={self.variant!r}: must be one of {', '.join(VARIANTS)}")
        for name in ("base", "docker"):
            if not getattr(self, name):
                raise ConfigError(f"{name}: must not be empty")
        self.tag = self.tag or f"openmle/sandbox:{self.variant}"


def build_command(variant: str, base: str, tag: str, docker: str = "docker") -> list[str]:
    """The command that builds the image."""
    arguments = {"BASE_IMAGE": base, "VARIANT": variant}
    given = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    return [docker, "build", *given, "--tag", tag, str(CONTEXT)]


def build_image(variant: str, base: str, tag: str, docker: str = "docker") -> None:
    """Builds it; what the builder says goes to stderr.

    Raises:
        RunnerUnavailable: There is no such docker command, or the build failed.
    """
    environment = dict(os.environ)
    try:
        # A client without buildx can build with the classic builder only, and has to be told.
        if subprocess.run([docker, "buildx", "version"], capture_output=True, check=False).returncode != 0:
            environment["DOCKER_BUILDKIT"] = "0"
        built = subprocess.run(
            build_command(variant, base, tag, docker), env=environment, stdout=sys.stderr, check=False
        )
    except OSError as error:
        raise RunnerUnavailable(f"docker={docker}: {error.strerror}") from error
    if built.returncode != 0:
        raise RunnerUnavailable(f"the build of {tag} on {base} failed; what went wrong stands above")


def run(config: ImageConfig) -> str:
    """The sub-command; returns what goes to stdout: the image's name, or the command that would build it."""
    if config.dry_run:
        return shlex.join(build_command(config.variant, config.base, config.tag, config.docker))
    build_image(config.variant, config.base, config.tag, config.docker)
    return config.tag


def main(arguments: Sequence[str] | None = None) -> int:
    """For scripts/build_image.sh, which runs before anything is installed: `build.py VARIANT BASE TAG DOCKER`."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("variant", "base", "tag", "docker"):
        parser.add_argument(name)
    options = parser.parse_args(arguments)
    try:
        print(run(ImageConfig(variant=options.variant, base=options.base, tag=options.tag, docker=options.docker)))
    except (ConfigError, RunnerUnavailable) as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
