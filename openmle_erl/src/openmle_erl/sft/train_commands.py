"""`openmle-erl sft`: trains a model on a corpus."""

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from openmle_gym.configuration import describe_config, load_config
from openmle_gym.console import print_json, run_command
from openmle_gym.errors import ConfigError

from openmle_erl.engines.memory import ParallelSizes
from openmle_erl.engines.settings import LoraSettings, OptimiserConfig, TorchEngineConfig
from openmle_erl.sft.config import CONFIGS
from openmle_erl.sft.train_config import MegatronLayout, ScratchConfig, SftConfig
from openmle_erl.tracking import TrackingConfig

PROFILES = ("laptop", "paper_30b", "paper_35b")
_PARTS = {
    "engine": TorchEngineConfig,
    "engine.lora": LoraSettings,
    "optimiser": OptimiserConfig,
    "scratch": ScratchConfig,
    "megatron": MegatronLayout,
    "megatron.parallel": ParallelSizes,
    "tracking": TrackingConfig,
}


def sft(arguments: Sequence[str]) -> int:
    """The command, without its first word."""
    options = _parser().parse_args(arguments)
    return run_command(lambda: _sft(options.profile, options.overrides))


def _parser() -> argparse.ArgumentParser:
    parts = (f"{name}.key=value:\n{describe_config(schema)}" for name, schema in _PARTS.items())
    parser = argparse.ArgumentParser(
        prog="openmle-erl sft",
        description=__doc__,
        epilog="\n\n".join([f"settings (key=value):\n{describe_config(SftConfig)}", *parts]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--profile", choices=PROFILES, default="laptop", help="default: laptop")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings; see below")
    return parser


def _sft(profile: str, overrides: Sequence[str]) -> int:
    config = load_config(SftConfig, f"sft_{profile}", configs=CONFIGS, overrides=overrides)
    for name, path in (("corpus", config.corpus), ("validation", config.validation)):
        if path is not None and not Path(path).is_file():  # before torch is loaded, which takes seconds
            raise ConfigError(f"{name}={path}: no such file")
    try:
        from openmle_erl.sft.train import run_sft
    except ImportError as error:
        raise ConfigError(f"sft needs torch and transformers: pip install 'openmle-erl[train]' ({error})") from error
    print_json(asyncio.run(run_sft(config))._asdict())
    return 0
