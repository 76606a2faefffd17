"""`openmle-erl train`, `openmle-erl status`, `openmle-erl plan`."""

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from openmle_gym.configuration import describe_config, load_config
from openmle_gym.console import print_json, run_command

from openmle_erl import plan as planning
from openmle_erl.rl.config import CONFIGS, RLConfig
from openmle_erl.rl.opening import check_inputs, open_engine, open_training
from openmle_erl.rl.status import read_status, summary_lines
from openmle_erl.tracking import open_tracker

INTERRUPTED = 130

log = logging.getLogger("openmle_erl")


def train(arguments: Sequence[str]) -> int:
    """The command, without its first word."""
    profiles = ", ".join(sorted(path.stem for path in CONFIGS.glob("rl_*.yaml")))
    parser = argparse.ArgumentParser(
        prog="openmle-erl train",
        description=(
            "Trains a model by reinforcement learning on tasks. Ctrl-C once ends after the current step, twice at once; "
            "the same command goes on."
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"settings (key=value):\n{describe_config(RLConfig)}",
    )
    parser.add_argument("profile", metavar="PROFILE", help=f"rl, or one of {profiles}")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings; see below")
    options = parser.parse_args(arguments)
    return run_command(lambda: asyncio.run(_train(load_profile(options.profile, options.overrides))))


def load_profile(profile: str, overrides: Sequence[str]) -> RLConfig:
    """The settings of `configs/erl/<profile>.yaml`, with overrides."""
    return load_config(RLConfig, profile, configs=CONFIGS, overrides=overrides)


async def _train(config: RLConfig) -> int:
    check_inputs(config)
    from openmle_erl.engines.torch_trainer import TorchTrainer  # torch, which the other commands do without

    async with open_engine(config) as engine:
        trainer = await TorchTrainer.start(config.trainer, processes=config.trainer_processes)
        try:
            with open_tracker(Path(config.run_dir), config.tracking) as tracker:
                async with open_training(config, trainer=trainer, engine=engine, sink=tracker) as training:
                    main = asyncio.ensure_future(training.run())
                    interrupts = 0

                    def interrupt() -> None:
                        nonlocal interrupts
                        interrupts += 1
                        if interrupts == 1:
                            log.warning("ends after this step; Ctrl-C again ends at once")
                            stopping.append(asyncio.ensure_future(training.stop()))
                        else:
                            main.cancel()

                    stopping: list[asyncio.Future[None]] = []
                    for name in (signal.SIGINT, signal.SIGTERM):
                        asyncio.get_running_loop().add_signal_handler(name, interrupt)
                    steps = await main
        finally:
            await trainer.close()
    print_json({"run_dir": config.run_dir, "steps": steps})
    return INTERRUPTED if interrupts else 0


def status(arguments: Sequence[str]) -> int:
    """The command, without its first word."""
    parser = argparse.ArgumentParser(
        prog="openmle-erl status",
        description="Says how a run stands, from its folder alone; the run may be going on meanwhile.",
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN")
    options = parser.parse_args(arguments)

    def say() -> int:
        found = read_status(options.run_dir)
        print("\n".join(summary_lines(found)), file=sys.stderr)
        print_json(asdict(found))
        return 0

    return run_command(say)


def plan(arguments: Sequence[str]) -> int:
    """The command, without its first word."""
    parser = argparse.ArgumentParser(
        prog="openmle-erl plan",
        description=planning.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"settings (key=value):\n{describe_config(planning.PlanConfig)}",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings; see below")
    parser.add_argument(
        "--enough",
        choices=("sandbox_workers", "engines"),
        help="also search how many of these pay: until doubling them shortens a step by less than 5 %%",
    )
    options = parser.parse_args(arguments)

    def say() -> int:
        config = load_config(planning.PlanConfig, "plan", configs=CONFIGS, overrides=options.overrides)
        rows = planning.plan(config)
        print(planning.table(rows), file=sys.stderr)
        found = {f"enough_{options.enough}": planning.enough(config, options.enough)} if options.enough else {}
        print_json({"rows": [row._asdict() for row in rows], **found})
        return 0

    return run_command(say)
