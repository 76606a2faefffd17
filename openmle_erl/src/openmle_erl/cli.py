"""`openmle-erl`: rewards and advantages, the corpus, fine-tuning, reinforcement learning, serving, planning."""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, get_args

from openmle_gym.console import print_json, run_command
from openmle_gym.errors import ConfigError

from openmle_erl import __version__
from openmle_erl.rewards.advantages import LOG_2, AdvantageKind, AdvantageSettings, group_advantages
from openmle_erl.rewards.diagnostics import advantage_report


def main(arguments: Sequence[str] | None = None) -> int:
    """The console command."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] == ["sft-data"]:
        from openmle_erl.sft.commands import sft_data  # pandas and hydra, which the other commands do without

        return sft_data(arguments[1:])
    if arguments[:1] == ["sft"]:
        from openmle_erl.sft.train_commands import sft

        return sft(arguments[1:])
    if arguments[:1] == ["serve"]:
        from openmle_erl.engines.serve import serve

        return serve(arguments[1:])
    if arguments[:1] in (["train"], ["status"], ["plan"]):
        from openmle_erl.rl import commands

        return getattr(commands, arguments[0])(arguments[1:])
    if arguments[:1] == ["launch"]:
        from openmle_erl.cluster.commands import launch

        return launch(arguments[1:])
    options = _parser().parse_args(arguments)
    return run_command(lambda: options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="openmle-erl", description=__doc__)
    parser.add_argument("--version", action="version", version=f"openmle-erl {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_advantages(commands)
    commands.add_parser("sft-data", help="make and check the corpus for supervised fine-tuning: collect, build, audit")
    commands.add_parser("sft", help="supervised fine-tuning on a corpus")
    commands.add_parser("serve", help="serve a checkpoint of this machine, for rollouts or as a policy")
    commands.add_parser("train", help="reinforcement learning of the four operators on tasks")
    commands.add_parser("status", help="how a training run stands, from its folder")
    commands.add_parser("plan", help="simulate a run on a virtual clock: step time, what idles, how many workers pay")
    commands.add_parser("launch", help="place trainers and rollout engines on a Ray cluster, or show how they would be")
    return parser


def _add_advantages(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "advantages",
        help="advantages of grouped rewards, and a report on the groups",
        description=(
            'Reads one JSON object a line, {"group": 7, "reward": 0.25}; a group is a string or an integer, a reward '
            "that is null is missing. Prints the advantages in the order of the lines, 0 where the reward is missing, "
            "and a report: why groups gave no signal, what divergence the others spent."
        ),
    )
    parser.add_argument("file", type=Path, metavar="FILE.jsonl")
    parser.add_argument("--kind", choices=get_args(AdvantageKind), default="entropic", help="default: entropic")
    parser.add_argument(
        "--target-kl",
        type=_positive,
        default=LOG_2,
        metavar="NATS",
        help="divergence from uniform that entropic weights spend (default: log 2)",
    )
    parser.add_argument("--cap", type=_positive, help="largest entropic advantage (default: none)")
    parser.add_argument("--centre", action="store_true", help="make each group's entropic advantages sum to zero")
    parser.set_defaults(run=_advantages)


def _advantages(options: argparse.Namespace) -> int:
    rewards, groups = _read_rewards(options.file)
    settings = AdvantageSettings(kind=options.kind, target_kl=options.target_kl, cap=options.cap, centre=options.centre)
    report = advantage_report(rewards, groups, settings)
    print_json(
        {
            "kind": options.kind,
            "advantages": group_advantages(rewards, groups, settings).tolist(),
            "summary": report.summary(),
            "groups": report.rows(),
        }
    )
    return 0


class _Rewards(NamedTuple):
    rewards: list[float | None]
    groups: list[str | int]


def _read_rewards(path: Path) -> _Rewards:
    read = _Rewards([], [])
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    reward, group = _read_line(line, f"{path}:{number}")
                    read.rewards.append(reward)
                    read.groups.append(group)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    return read


def _read_line(line: bytes, place: str) -> tuple[float | None, str | int]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place}: not JSON: {error}") from error
    if not isinstance(record, dict):
        raise ConfigError(f"{place}: expected an object with group and reward, got {type(record).__name__}")
    missing = [name for name in ("group", "reward") if name not in record]
    if missing:
        raise ConfigError(f"{place}: no {' and no '.join(missing)}")
    group, reward = record["group"], record["reward"]
    if isinstance(group, bool) or not isinstance(group, str | int):
        raise ConfigError(f"{place}: group must be a string or an integer, got {group!r}")
    if isinstance(reward, bool) or not isinstance(reward, int | float | None):
        raise ConfigError(f"{place}: reward must be a number or null, got {reward!r}")
    try:
        return None if reward is None else float(reward), group
    except OverflowError as error:
        raise ConfigError(f"{place}: reward is too large") from error


def _positive(text: str) -> float:
    value = float(text)
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be positive and finite, got {text}")
    return value
