"""`openmle-sandbox conformance`."""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from openmle_gym.configuration import load_config
from openmle_gym.console import print_json

from sandbox_service.conformance.check import CheckState
from sandbox_service.conformance.config import ConformanceConfig
from sandbox_service.conformance.package import write_package
from sandbox_service.conformance.run import Report, run_conformance


def conformance(overrides: Sequence[str], *, configs: Path) -> int:
    """The command: the report as JSON on stdout, what failed in words on stderr.

    Args:
        configs: The layer's folder of YAML files, absolute.

    Returns:
        0 when no check failed that must pass, else 1.

    Raises:
        ConfigError: A setting is wrong.
        ExecutorUnavailable: Nothing answers at the URL.
    """
    config = load_config(ConformanceConfig, "conformance", configs=configs, overrides=overrides)
    if config.make_package:
        write_package(Path(config.make_package))
        print_json({"package": str(Path(config.make_package).resolve())})
        return 0
    report = asyncio.run(run_conformance(config))
    _tell(report)
    print_json(report.model_dump(mode="json"))
    return 0 if report.ok else 1


def _tell(report: Report) -> None:
    for check in report.checks:
        if check.state is CheckState.FAILED:
            print(
                f"{check.id} ({check.group}, {check.severity}): {check.asserts}\n    {check.evidence}", file=sys.stderr
            )
    print(
        f"{report.passed} passed, {report.failed_must} failed, {report.failed_should} failed that should pass, "
        f"{report.skipped} skipped, in {report.seconds:g} s",
        file=sys.stderr,
    )
