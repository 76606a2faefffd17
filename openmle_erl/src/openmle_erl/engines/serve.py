"""`openmle-erl serve`: a checkpoint on this machine as a rollout engine, or as the policy of a search."""

import argparse
import asyncio
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import MISSING
from openmle_gym.configuration import describe_config, load_config, secret_from_environment
from openmle_gym.console import run_command
from openmle_gym.errors import ConfigError

CONFIGS = Path(__file__).parent.parent / "configs"
API_KEY, ADMIN_KEY = "OPENMLE_ROLLOUT_KEY", "OPENMLE_ROLLOUT_ADMIN_KEY"
LOOPBACK = ("127.0.0.1", "::1", "localhost")

logger = logging.getLogger(__name__)


@dataclass
class ServeConfig:
    """`openmle-erl serve`."""

    model: str = MISSING
    """The model's folder in Hugging Face's layout, with its tokenizer."""
    host: str = "127.0.0.1"
    """Where to listen; beyond this machine only with a key."""
    port: int = 30000
    """0 for any free one."""
    name: str | None = None
    """The model's name in OpenAI's protocol; by default that of its folder."""
    max_running: int = 64
    """How many requests are generated at once; the others wait."""
    device: str = "cpu"
    """A device of torch."""
    threads: int | None = None
    """Threads of torch on the CPU; by default as torch decides."""
    ready_file: str | None = None
    """A file that gets the base URL once requests are answered."""

    def __post_init__(self) -> None:
        for name, least in (("port", 0), ("max_running", 1), ("threads", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name}: must be at least {least}, got {value}")


def serve(arguments: Sequence[str]) -> int:
    """The command, without its first word."""
    parser = argparse.ArgumentParser(
        prog="openmle-erl serve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=(
            f"settings (key=value):\n{describe_config(ServeConfig)}\n\n"
            f"Keys come from the environment: {API_KEY} for requests (without it everybody on this machine may ask), "
            f"{ADMIN_KEY}\nfor pausing and replacing weights (without it nobody may)."
        ),
    )
    parser.add_argument("model", metavar="MODEL_FOLDER")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_args(arguments)
    return run_command(lambda: _serve([f"model='{options.model}'", *options.overrides]))


def _serve(overrides: Sequence[str]) -> int:
    config = load_config(ServeConfig, "serve", configs=CONFIGS, overrides=overrides)
    if config.host not in LOOPBACK and secret_from_environment(API_KEY) is None:
        raise ConfigError(f"host={config.host}: beyond this machine a key is needed; set {API_KEY}")
    if not Path(config.model).is_dir():  # before torch is loaded, which takes seconds
        raise ConfigError(f"model={config.model}: no such folder")
    asyncio.run(_run(config))
    return 0


async def _run(config: ServeConfig) -> None:
    # torch, transformers and the web server, which the other commands do without
    import torch
    import transformers
    import uvicorn

    from openmle_erl.engines.local_server import LocalServer
    from openmle_erl.sft.tokens import load_tokenizer

    transformers.logging.disable_progress_bar()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    folder = Path(config.model)
    with _listen(config) as listener:
        host = f"[{config.host}]" if ":" in config.host else config.host
        url = f"http://{host}:{listener.getsockname()[1]}"
        local = LocalServer(
            folder,
            tokenizer=load_tokenizer(folder),
            api_key=secret_from_environment(API_KEY),
            admin_key=secret_from_environment(ADMIN_KEY),
            name=config.name,
            max_running=config.max_running,
            device=config.device,
            on_ready=lambda: _announce(config, url),
        )
        settings = uvicorn.Config(local.app, log_level="warning", access_log=False, timeout_graceful_shutdown=2)
        await uvicorn.Server(settings).serve(sockets=[listener])


def _announce(config: ServeConfig, url: str) -> None:
    """Says that requests are answered from now on; those that came before have waited."""
    if config.ready_file:
        part = Path(f"{config.ready_file}.part")
        part.write_text(url, encoding="utf-8")
        part.replace(config.ready_file)
    logger.info("serving %s at %s (%s/v1 for OpenAI's protocol); Ctrl-C ends it", config.model, url, url)


def _listen(config: ServeConfig) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
        return socket.create_server((config.host, config.port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(f"host={config.host} port={config.port}: cannot listen there: {error}") from error
