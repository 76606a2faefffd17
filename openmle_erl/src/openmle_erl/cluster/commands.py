"""`openmle-erl launch`: checks a run on a cluster, shows what would be started, and starts it."""

import argparse
import asyncio
import logging
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from openmle_gym.configuration import describe_config, load_config
from openmle_gym.console import print_json, run_command
from openmle_gym.errors import ConfigError

from openmle_erl.cluster.config import CONFIGS, LaunchConfig, NodesConfig, RayConfig, RolloutShare, TrainerShare
from openmle_erl.cluster.placement import Placement, place, ray_environment, shown
from openmle_erl.cluster.validation import Checked, check, read_model, table
from openmle_erl.rl.config import RLConfig
from openmle_erl.rl.opening import check_inputs

UNSET = "unset"
MODEL = "$MODEL"
"""Stands for the model's folder where a dry run has none."""

logger = logging.getLogger(__name__)


def launch(arguments: Sequence[str]) -> int:
    """The command, without its first word."""
    topologies = ", ".join(sorted(path.stem for path in (CONFIGS / "topology").glob("*.yaml")))
    parts = {"nodes": NodesConfig, "trainer": TrainerShare, "rollout": RolloutShare, "ray": RayConfig}
    parser = argparse.ArgumentParser(
        prog="openmle-erl launch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n\n".join(
            [
                f"settings (key=value):\n{describe_config(LaunchConfig)}",
                *(f"{name}.key=value:\n{describe_config(schema)}" for name, schema in parts.items()),
                f"topology=NAME, one of: {topologies}.",
            ]
        ),
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings; see below")
    parser.add_argument(
        "training", nargs="*", metavar="-- key=value", help="after --: what differs from the training's profile"
    )
    own, training = list(arguments), []
    if "--" in own:
        cut = own.index("--")
        own, training = own[:cut], own[cut + 1 :]
    options = parser.parse_args(own)
    return run_command(lambda: _launch(options.overrides, training))


class Prepared(NamedTuple):
    """A launch that was checked."""

    config: LaunchConfig
    training: RLConfig
    checked: Checked
    placement: Placement


def prepare(overrides: Sequence[str], training_overrides: Sequence[str]) -> Prepared:
    """Reads the settings of launch and training, checks all of it, and places the processes.

    Raises:
        ConfigError: Something does not fit.
    """
    config = load_config(LaunchConfig, "launch", configs=CONFIGS, overrides=overrides)
    model = read_model(config)
    config = replace(config, model=config.model or MODEL)
    known = [f"model='{config.model}'", *training_overrides]
    if config.dry_run:  # what a run needs and its placement does not
        known = ["tasks=[]", f"run_dir={UNSET}", *known]
    training = load_config(RLConfig, config.profile, configs=CONFIGS, overrides=known)
    checked = check(config, training, model)
    placement = place(config, context_tokens=training.context_tokens, replay_routing=training.trainer.replay_routing)
    return Prepared(config, training, checked, placement)


def _launch(overrides: Sequence[str], training_overrides: Sequence[str]) -> int:
    config, training, checked, placement = prepare(overrides, training_overrides)
    for warning in checked.warnings:
        logger.warning("%s", warning)
    if config.dry_run:
        print("\n".join(plan_lines(config, placement)), file=sys.stderr)
        print_json({"topology": config.topology, **table(checked), "processes": _rows(placement)})
        return 0
    if config.shape is not None:
        raise ConfigError("shape: for dry runs; a run reads its model")
    if checked.warnings and config.nodes.gpus:
        raise ConfigError("versions: " + "; ".join(checked.warnings))
    check_inputs(training)
    Path(training.run_dir).mkdir(parents=True, exist_ok=True)
    os.environ.update(ray_environment(config, os.environ))
    from openmle_erl.cluster.running import run  # Ray and torch, which a dry run does without

    print_json({"run_dir": training.run_dir, "steps": asyncio.run(run(config, training, checked, placement))})
    return 0


def plan_lines(config: LaunchConfig, placement: Placement) -> list[str]:
    """What would be started, for people; no secret stands in it."""
    lines = [
        f"topology {config.topology}: {len(placement.bundles)} node(s), reserved of each: {dict(placement.bundles[0])}"
    ]
    lines += ["", "Ray, on all nodes with"]
    lines += [f"  {name}={value}" for name, value in placement.ray_environment.items()]
    lines += [f"  {command}" for command in placement.ray_commands]
    for process in placement.processes:
        where = f"GPUs {','.join(map(str, process.gpus))}" if process.gpus else "CPU"
        lines += ["", f"{process.name}: node {process.node}, {where}"]
        lines += [f"  {name}={value}" for name, value in process.environment.items()]
        lines.append("  " + " ".join(word if "$" in word else shlex.quote(word) for word in process.command))
    return shown("\n".join(lines), os.environ).split("\n")


def _rows(placement: Placement) -> list[dict[str, object]]:
    return [
        {
            "name": process.name,
            "node": process.node,
            "gpus": list(process.gpus),
            "command": [shown(word, os.environ) for word in process.command],
            "environment": {name: shown(value, os.environ) for name, value in process.environment.items()},
        }
        for process in placement.processes
    ]
