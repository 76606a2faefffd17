"""`openmle-gym build`."""

import argparse
import contextlib
import dataclasses
import logging
from pathlib import Path

from openmle_gym.build.config import CONFIGS, BuildConfig
from openmle_gym.build.pipeline import build_package
from openmle_gym.build.request import BuildRequest
from openmle_gym.build.run_prepare import PrepareSettings
from openmle_gym.build.source import Source, parse_source
from openmle_gym.build.unpack import GIB, UnpackLimits
from openmle_gym.chat import ChatModel
from openmle_gym.configuration import describe_config, load_config
from openmle_gym.console import print_json
from openmle_gym.isolation.choose import strongest_runner
from openmle_gym.jobs import MIB
from openmle_gym.policies.settings import PolicyConfig, open_policy

DATASET_TASKS = 3
_DESCRIPTION = """\
Builds task packages, stage by stage: fetch, unpack, profile, describe, prepare, metric, verify. A build that was
stopped or killed goes on where it was when the same command is given again; nothing that is done is done twice.

SOURCE is a Kaggle competition (its slug, competition:SLUG or its address), a Kaggle data set (OWNER/NAME,
dataset:OWNER/NAME or its address), or a folder or a file of this machine."""

log = logging.getLogger("openmle_gym")


def add_build_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds it to the commands of `openmle-gym`."""
    parser = commands.add_parser(
        "build",
        help="make task packages from a Kaggle competition or data set, a folder or a file",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(
            [
                "settings (key=value):",
                describe_config(BuildConfig),
                "",
                "settings of the model (policy.key=value):",
                describe_config(PolicyConfig),
                "",
                "Progress goes to stderr, one JSON object to stdout. Exit codes: 0 every task became a package, 1 one did",
                "not, 2 usage, 3 the model, Kaggle or the isolation cannot be had.",
            ]
        ),
    )
    parser.add_argument("source", metavar="SOURCE")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings; see below")
    parser.set_defaults(run=_build)


async def _build(options: argparse.Namespace) -> int:
    source = parse_source(options.source)
    config = load_config(BuildConfig, "build", configs=CONFIGS, overrides=options.overrides)
    request = build_request(source, config)
    runner = await strongest_runner(config.runner, docker_image=config.docker_image, allow_process=config.allow_process)
    log.info("isolation: %s; work: %s", runner.isolation, request.work)
    async with contextlib.AsyncExitStack() as stack:
        model: ChatModel | None = None
        if config.policy.kind != "none":
            model = await stack.enter_async_context(open_policy(config.policy, CONFIGS))
        report = await build_package(request, model=model, runner=runner)
    print_json({**report.model_dump(mode="json"), "ok": report.ok})
    return 0 if report.ok else 1


def build_request(source: Source, config: BuildConfig) -> BuildRequest:
    """The settings of a command as a request."""
    name = config.name or source.task_name
    several = DATASET_TASKS if source.kind == "dataset" and config.policy.kind != "none" else 1
    limits = PrepareSettings().limits.model_copy(
        update={"wall_seconds": config.prepare_seconds, "memory_bytes": config.prepare_memory_mb * MIB}
    )
    return BuildRequest(
        source=source,
        work=Path(config.work or Path("builds") / name).absolute(),
        output=Path(config.output).absolute(),
        name=config.name,
        title=config.title,
        targets=tuple(config.target),
        id_column=config.id,
        metric=config.metric,
        table=config.table,
        licence=config.licence,
        tasks=config.tasks or several,
        attempts=config.retries + 1,
        seed=config.seed,
        keep_raw=config.keep_raw,
        allow_mle_bench=config.allow_mle_bench,
        prepare=PrepareSettings(limits=limits),
        unpacking=dataclasses.replace(UnpackLimits(), bytes=int(config.unpacked_gb * GIB)),
    )
