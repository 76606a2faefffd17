"""What runs a loop's commands: once each, with their output kept; or, for a plan, what prints them and checks their settings."""

import contextlib
import fcntl
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from openmle_erl.rl.config import RLConfig
from openmle_erl.sft.config import CONFIGS as ERL_CONFIGS
from openmle_erl.sft.config import BuildConfig, CollectConfig
from openmle_erl.sft.train_config import SftConfig
from openmle_evo.config import CONFIGS as EVO_CONFIGS
from openmle_evo.evaluation.cli import EvaluateConfig
from openmle_gym.configuration import load_config
from openmle_gym.errors import ConfigError, InfrastructureError

READY_SECONDS = 300.0
TIED = (
    sys.executable,
    "-c",
    "import ctypes, os, signal, sys; getattr(ctypes.CDLL(None), 'prctl', lambda *_: None)(1, signal.SIGTERM); "
    "os.execvp(sys.argv[1], sys.argv[1:])",
)
"""Runs a command that is told to end when we do, however we end."""
SHOWN_LINES = 12


class Machinery:
    """Runs commands. A stage whose result is there is not run again."""

    def __init__(self, path: Path) -> None:
        """Opens a loop's folder, or makes it.

        Raises:
            ConfigError: Another loop runs on it.
        """
        self.path = path
        self.stages = path / "stages"
        self.stages.mkdir(parents=True, exist_ok=True)
        self._lock = (path / ".lock").open("w")  # until we end, however that is
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"run_dir={path}: another loop runs on it") from None

    def stage(
        self,
        name: str,
        command: Sequence[str | Path],
        environment: Mapping[str, str] | None = None,
        *,
        again: bool = False,
    ) -> bool:
        """Runs a command to its end, or finds that it was; whether it ran now; `stages/<name>` has its command line, result and log.

        Args:
            again: Run it though it was.

        Raises:
            InfrastructureError: It failed.
        """
        result, log = self.stages / f"{name}.json", self.stages / f"{name}.log"
        if self.done(name) and not again:
            return False
        arguments = [str(each) for each in command]
        (self.stages / f"{name}.sh").write_text(shlex.join(arguments) + "\n", encoding="utf-8")
        say(f"{name} ...")
        start = time.monotonic()
        try:
            with self._turn("stage") as turn, result.with_suffix(".part").open("w") as out, log.open("a") as errors:
                ended = subprocess.run(
                    [*TIED, *arguments],
                    stdout=out,
                    stderr=errors,
                    env=environment_with(environment or {}),
                    pass_fds=[turn.fileno()],
                    check=False,
                )
        finally:
            with (self.path / "seconds.tsv").open("a", encoding="utf-8") as table:
                table.write(f"{name}\t{time.monotonic() - start:.1f}\n")
        if ended.returncode in (130, -signal.SIGINT):
            raise KeyboardInterrupt
        if ended.returncode:
            tail = "\n".join(log.read_text(encoding="utf-8").splitlines()[-SHOWN_LINES:])
            raise InfrastructureError(f"{name}: ended with {ended.returncode}; {log} ends with\n{tail}")
        result.with_suffix(".part").rename(result)
        say(f"{name}: {time.monotonic() - start:.0f} s")
        return True

    def done(self, name: str) -> bool:
        """Whether a stage's result is there."""
        return (self.stages / f"{name}.json").exists()

    def result(self, name: str) -> str:
        """What a stage printed."""
        return (self.stages / f"{name}.json").read_text(encoding="utf-8")

    @contextlib.contextmanager
    def server(
        self, name: str, command: Sequence[str | Path], environment: Mapping[str, str], *, health: str | None = None
    ) -> Iterator[str]:
        """A server, until the end of the block; its address.

        Args:
            command: `{port}` stands for its port, `{ready}` for a file that it writes once it answers.
            health: Instead of such a file, the path that then answers 200.

        Raises:
            InfrastructureError: It did not start.
        """
        ready, port = self.path / f"{name}.url", self._port(name)
        url = f"http://127.0.0.1:{port}"
        arguments = [str(each).replace("{port}", port).replace("{ready}", str(ready)) for each in command]
        with self._turn(name) as turn, (self.stages / f"{name}.log").open("a") as log:
            ready.unlink(missing_ok=True)
            # Ctrl-C is for the stage, and for us, who end the server
            server = subprocess.Popen(
                [*TIED, *arguments],
                stdout=log,
                stderr=log,
                env=environment_with(environment),
                pass_fds=[turn.fileno()],
                start_new_session=True,
            )
        try:
            deadline = time.monotonic() + READY_SECONDS
            while not (ready.exists() or (health is not None and _answers(url + health))):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise InfrastructureError(f"{name}: did not start; see {self.stages / f'{name}.log'}")
                time.sleep(0.05)
            yield url
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()

    def _turn(self, name: str) -> IO[str]:
        """A lock that the process that inherits it holds until it ends, also when we are killed before; waits for it.

        A loop that is given again at once finds what the killed one started still ending.
        """
        turn = (self.stages / f"{name}.lock").open("w")
        try:
            fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{name}: waiting for the one before to end")
            fcntl.flock(turn, fcntl.LOCK_EX)
        return turn

    def _port(self, name: str) -> str:
        """A free port, the same in every life of the loop: what was begun with an address goes on with it."""
        kept = self.path / f"{name}.port"
        if not kept.exists():
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                kept.write_text(str(probe.getsockname()[1]), encoding="utf-8")
        return kept.read_text(encoding="utf-8")


class Plan(Machinery):
    """Prints the commands, checks their settings, and runs nothing but dry runs."""

    def stage(
        self,
        name: str,
        command: Sequence[str | Path],
        environment: Mapping[str, str] | None = None,
        *,
        again: bool = False,
    ) -> bool:
        """Prints a command.

        Raises:
            ConfigError: A setting of it cannot work.
            InfrastructureError: A dry run of it failed.
        """
        arguments = [str(each) for each in command]
        print(f"\n# {name}\n{shlex.join(arguments)}")
        check_settings(arguments)
        if "dry_run=true" in arguments:
            dry = subprocess.run(arguments, capture_output=True, text=True, env=environment_with({}), check=False)
            if dry.returncode:
                raise InfrastructureError(f"{name}: its dry run ended with {dry.returncode}\n{dry.stderr}")
            print(dry.stderr.rstrip())
        sys.stdout.flush()
        return False

    def done(self, name: str) -> bool:
        """Nothing is ever done."""
        return False

    def result(self, name: str) -> str:
        """Nothing was printed."""
        return json.dumps({"planned": True}) + "\n"

    @contextlib.contextmanager
    def server(
        self, name: str, command: Sequence[str | Path], environment: Mapping[str, str], *, health: str | None = None
    ) -> Iterator[str]:
        """Prints the command; an address that nobody listens at."""
        port = {"sandbox": "6580", "serve": "30000"}[name]
        words = [str(each).replace("{port}", port).replace("{ready}", "READY") for each in command]
        print(f"\n# {name}, meanwhile\n{shlex.join(words)} &")
        yield f"http://127.0.0.1:{port}"


def check_settings(arguments: Sequence[str]) -> None:
    """Composes the settings of a command, where it has any.

    Raises:
        ConfigError: One of them cannot work.
    """
    given = [each for each in arguments if "=" in each and not each.startswith("--")]
    match arguments[:3]:
        case ["openmle-erl", "sft-data", "collect"]:
            load_config(CollectConfig, "sft_data_collect", configs=ERL_CONFIGS, overrides=given)
        case ["openmle-erl", "sft-data", "build"]:
            load_config(BuildConfig, "sft_data_build", configs=ERL_CONFIGS, overrides=given)
        case ["openmle-erl", "sft", _]:
            profile = arguments[arguments.index("--profile") + 1]
            load_config(SftConfig, f"sft_{profile}", configs=ERL_CONFIGS, overrides=given)
        case ["openmle-erl", "train", profile]:
            load_config(RLConfig, profile, configs=ERL_CONFIGS, overrides=given)
        case ["openmle-evo", "evaluate" | "drafts", _]:
            load_config(EvaluateConfig, "evaluate", configs=EVO_CONFIGS, overrides=given)
        case _:
            pass


def environment_with(changed: Mapping[str, str]) -> dict[str, str]:
    """Ours, with the commands of this interpreter's environment first in the search path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return os.environ | changed | {"PATH": path}


def say(line: str) -> None:
    """To stderr, with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1.0) as reply:
            return reply.status == 200
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False
