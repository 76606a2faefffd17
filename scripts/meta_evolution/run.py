"""The closed loop: train the improver on tasks, measure it on other tasks. See docs/closed_loop.md.

    tasks -> teacher's programs -> corpus -> base (SFT) -> trained (RL) -> single Drafts and searches on held-out tasks -> report

Every stage is a command of one of the four libraries, with its settings spelt out in `<run_dir>/stages/<stage>.sh`. A stage
whose result is there is not run again, and one that was stopped goes on where it was.
"""

import argparse
import contextlib
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from openmle_gym.configuration import describe_config, load_config
from openmle_gym.console import run_command
from openmle_gym.errors import ConfigError, InfrastructureError

from config import ABLATIONS, HERE, LoopConfig

GRADE_KEY, SUBMIT_KEY = "OPENMLE_SANDBOX_GRADE_KEY", "OPENMLE_SANDBOX_KEY"
READY_SECONDS = 300.0
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""While a model learns or answers beside running programs: threads that wait for each other would wait for those too."""


class Served(NamedTuple):
    """Who answers in a measurement."""

    name: str
    model: Path | None
    """Served while it lasts; None for the recipe policy."""


class Loop:
    """One loop, from settings to stages."""

    def __init__(self, config: LoopConfig) -> None:
        self.config = config
        self.path = Path(config.run_dir).resolve()
        self.stages = self.path / "stages"
        self.stages.mkdir(parents=True, exist_ok=True)
        self.service = ""

    def run(self) -> None:
        """All stages, in order."""
        config = self.config
        names = [*config.train, *config.held_out]
        self.stage("tasks", ["openmle-gym", "anchors", "build", *names, "--output", self.path / "tasks", "--allow-process"])
        with self.sandbox() as self.service:
            self.teach()
            examples = [f"collections=[{self.path / 'teacher/drafts'}]"]
            searched = [self.path / "teacher/search"]
            parent: Path | None = None
            for number in range(1, config.rounds + 1):
                base = self.learn(number, examples, searched, parent)
                trained = [self.train(number, base, seed) for seed in config.seeds]
                self.measure(number, base, trained)
                if number < config.rounds:  # the search's own verified transitions teach the next generation
                    searched.append(
                        self.search(f"round-{number}/own", Served("own", trained[0]), self.packages("train"))
                    )
                    parent = base
        self.stage("report", [sys.executable, HERE / "report.py", self.path])
        sys.stdout.write((self.stages / "report.json").read_text(encoding="utf-8"))

    def teach(self) -> None:
        """The recipe policy's independent Drafts and searches on train tasks."""
        config, teacher = self.config, self.path / "teacher"
        recipes = ["policy=recipes", "+policy.extra.general=true", f"+policy.extra.slip_rate={config.slip_rate}"]
        tasks = self.packages("train")
        self.stage(
            "teacher-drafts",
            ["openmle-erl", "sft-data", "collect", tasks, f"out={teacher / 'drafts'}", *self.places(4), *self.prompts()]
            + [f"quota={config.drafts}", f"limit={config.drafts}", "batch=8", *recipes],
        )
        self.stage(
            "teacher-search",
            ["openmle-evo", "evaluate", tasks, f"suite_dir={teacher / 'search'}", "runs=1", *self.places(4)]
            + [*self.prompts(), "memory.kind=none", f"budget.attempts={config.teacher_attempts}", *recipes],
        )

    def learn(self, number: int, examples: Sequence[str], searched: Sequence[Path], parent: Path | None) -> Path:
        """Corpus and supervised fine-tuning; the base policy's weights."""
        folder = self.path / f"round-{number}"
        runs = [str(manifest.parent) for suite in searched for manifest in sorted(suite.glob("*/run-*/manifest.json"))]
        held_out = self.packages("held_out").removeprefix("tasks=")
        self.stage(
            f"round-{number}-corpus",
            ["openmle-erl", "sft-data", "build", f"out={folder / 'corpus'}", *examples, f"runs=[{','.join(runs)}]"]
            + [f"reserved.tasks={held_out}", "drafts_per_task=null", "overwrite=true"],
        )
        corpus = folder / "corpus/corpus.jsonl"
        self.stage(f"round-{number}-audit", ["openmle-erl", "sft-data", "audit", corpus, f"reserved.tasks={held_out}"])
        start = [] if parent is None else ["scratch.layers=0", f"engine.model={parent}"]
        self.stage(
            f"round-{number}-sft",
            ["openmle-erl", "sft", f"corpus={corpus}", f"out={folder / 'sft'}", *settings(self.config.sft), *start],
        )
        return folder / "sft/model"

    def train(self, number: int, base: Path, seed: int) -> Path:
        """Reinforcement learning with one seed, and its ablations; the trained policy's weights."""
        trained = self.reinforce(f"round-{number}-rl-seed-{seed}", base, seed, [])
        for name in self.config.ablations if number == 1 else ():
            self.reinforce(f"round-{number}-{name}-seed-{seed}", base, seed, ABLATIONS[name])
        return trained

    def reinforce(self, name: str, base: Path, seed: int, changed: Sequence[str]) -> Path:
        config, folder = self.config, self.path / "rl" / name
        self.stage(
            name,
            ["openmle-erl", "train", "rl_laptop", self.packages("train"), f"model={base}", f"run_dir={folder}"]
            + [f"seed={seed}", f"sandbox.service={self.service}", f"sandbox.timeout_seconds={config.timeout_seconds}"]
            + [*self.prompts(), *settings(config.rl), *changed],
            ONE_THREAD,
        )
        return weights(folder)

    def measure(self, number: int, base: Path, trained: Sequence[Path]) -> None:
        """Single Drafts, and searches with one budget, of everybody who is compared."""
        config, held_out = self.config, self.packages("held_out")
        count = {"held-out": config.measured_drafts, "train": config.measured_train_drafts}
        policies = [Served("base", base)]
        policies += [Served(f"trained-{seed}", model) for seed, model in zip(config.seeds, trained, strict=True)]
        if number == 1:
            policies.insert(0, Served("recipes", None))
            for name in config.ablations:
                folders = [self.path / "rl" / f"round-1-{name}-seed-{seed}" for seed in config.seeds]
                policies += [Served(f"{name}-{s}", weights(f)) for s, f in zip(config.seeds, folders, strict=True)]
        shares = len(config.seeds)
        for policy in policies:
            many = policy.name in ("recipes", "base")
            for side, drafts in count.items():
                suite = f"round-{number}/drafts/{side}/{policy.name}"
                self.drafts(suite, policy, side.replace("-", "_"), drafts if many else -(-drafts // shares))
        for policy in policies:
            if policy.name.rpartition("-")[0] in ABLATIONS:
                continue
            many = policy.name in ("recipes", "base")
            runs = config.search_runs if many else max(1, config.search_runs // shares)
            self.search(f"round-{number}/search/{policy.name}", policy, held_out, runs=runs)
        skills = self.path / "teacher/skills"
        distilled = sorted((self.path / "teacher/search").glob("*/run-0"))
        self.stage("skills", ["openmle-evo", "distill", *distilled, "--out", skills, "--pool"])
        for policy in policies:
            if policy.name.startswith("trained") or policy.name == "recipes":
                runs = config.search_runs if policy.model is None else max(1, config.search_runs // shares)
                maximal = ["search=openmle_max", f"skills={skills}", "prompt.skills=600"]
                self.search(f"round-{number}/search/max-{policy.name}", policy, held_out, runs=runs, changed=maximal)

    def drafts(self, name: str, policy: Served, side: str, count: int) -> None:
        with self.answering(policy, name) as answers:
            self.stage(
                name.replace("/", "-"),
                ["openmle-evo", "drafts", self.packages(side), f"suite_dir={self.path / name}", f"runs={count}"]
                + [*self.places(24), *self.prompts(), *answers, f"seed={seed_of(policy)}"],
            )

    def search(self, name: str, policy: Served, tasks: str, *, runs: int = 1, changed: Sequence[str] = ()) -> Path:
        with self.answering(policy, name) as answers:
            self.stage(
                name.replace("/", "-"),
                ["openmle-evo", "evaluate", *changed, tasks, f"suite_dir={self.path / name}", f"runs={runs}"]
                + [*self.places(4), *self.prompts(), "memory.kind=none", *answers, f"seed={seed_of(policy)}"]
                + [f"budget.attempts={self.config.search_attempts}"],
            )
        return self.path / name

    def packages(self, side: str) -> str:
        """As `tasks=`."""
        return f"tasks=[{','.join(str(self.path / 'tasks' / name) for name in getattr(self.config, side))}]"

    def places(self, workers: int) -> list[str]:
        """Where programs run, and how many attempts are under way."""
        return [f"service={self.service}", f"timeout_seconds={self.config.timeout_seconds}", f"workers={workers}"]

    def prompts(self) -> list[str]:
        """The budgets of prompts."""
        return [f"prompt.{name}={value}" for name, value in self.config.prompt.items()]

    def stage(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
        """Runs a command unless its result is there.

        Raises:
            InfrastructureError: It failed; its log says why.
        """
        result, log = self.stages / f"{name}.json", self.stages / f"{name}.log"
        if result.exists():
            return
        arguments = [str(each) for each in command]
        (self.stages / f"{name}.sh").write_text(shlex.join(arguments) + "\n", encoding="utf-8")
        say(f"{name} ...")
        start = time.monotonic()
        with result.with_suffix(".part").open("w") as out, log.open("a") as errors:
            ended = subprocess.run(
                arguments, stdout=out, stderr=errors, env=environment_with(environment or {})
            )
        seconds = time.monotonic() - start
        with (self.path / "seconds.tsv").open("a", encoding="utf-8") as table:
            table.write(f"{name}\t{seconds:.1f}\n")
        if ended.returncode:
            tail = "\n".join(log.read_text(encoding="utf-8").splitlines()[-12:])
            raise InfrastructureError(
                f"{name}: ended with {ended.returncode} after {seconds:.0f} s; {log} ends with\n{tail}"
            )
        result.with_suffix(".part").rename(result)
        say(f"{name}: {seconds:.0f} s")

    @contextlib.contextmanager
    def sandbox(self) -> Iterator[str]:
        """The sandbox service on loopback, with a key that may submit and one that may also grade on the test split."""
        config, folder = self.config, self.path / "sandbox"
        os.environ[SUBMIT_KEY], os.environ[GRADE_KEY] = secrets.token_hex(16), secrets.token_hex(16)
        keys = f"submit:{os.environ[SUBMIT_KEY]},grade:{os.environ[GRADE_KEY]}"
        command = ["openmle-sandbox", "serve", f"task_roots=[{self.path / 'tasks'}]", f"state_dir={folder}"]
        command += [f"workers={config.sandbox_workers}", f"runner={config.runner}"]
        with self.process("sandbox", command, {"OPENMLE_SANDBOX_KEYS": keys}) as url:
            yield url

    @contextlib.contextmanager
    def answering(self, policy: Served, name: str) -> Iterator[list[str]]:
        """The settings that name a policy, which is served meanwhile; nothing is served for a stage that is done."""
        if policy.model is None:
            yield ["policy=recipes", "+policy.extra.general=true"]
        elif (self.stages / f"{name.replace('/', '-')}.json").exists():
            yield []
        else:
            with self.process("serve", ["openmle-erl", "serve", policy.model, "name=policy"], ONE_THREAD) as url:
                yield [
                    *("policy=openai", f"policy.base_url={url}/v1", "policy.model=policy", "policy.temperature=1.0"),
                    *("policy.top_p=1.0", f"policy.max_tokens={self.config.reply_tokens}"),
                ]

    @contextlib.contextmanager
    def process(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str]) -> Iterator[str]:
        """A server that says where it listens in a file, and ends with the block."""
        ready = self.path / f"{name}.url"
        ready.unlink(missing_ok=True)
        arguments = [*map(str, command), f"port={self.port(name)}", f"ready_file={ready}"]
        with (self.stages / f"{name}.log").open("a") as log:
            server = subprocess.Popen(
                arguments,
                stdout=log,
                stderr=log,
                env=environment_with(environment),
                start_new_session=True,  # Ctrl-C is for the stage, and for us, who end the server
            )
        try:
            deadline = time.monotonic() + READY_SECONDS
            while not ready.exists():
                if server.poll() is not None or time.monotonic() > deadline:
                    raise InfrastructureError(f"{name}: did not start; see {self.stages / f'{name}.log'}")
                time.sleep(0.05)
            yield ready.read_text(encoding="utf-8").strip()
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()

    def port(self, name: str) -> str:
        """A free port, the same in every life of the loop: what was begun with an address goes on with it."""
        kept = self.path / f"{name}.port"
        if not kept.exists():
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                kept.write_text(str(probe.getsockname()[1]), encoding="utf-8")
        return kept.read_text(encoding="utf-8")


def weights(run: Path) -> Path:
    """The newest weights of a training run."""
    return max((run / "weights").glob("version-*"), default=run / "weights")


def seed_of(policy: Served) -> int:
    """Searches and Drafts of differently seeded policies have differently seeded prompts too."""
    tail = policy.name.rpartition("-")[2]
    return int(tail) if tail.isdigit() else 0


def settings(values: Mapping[str, object], prefix: str = "") -> list[str]:
    """Nested settings as `key=value`."""
    found: list[str] = []
    for name, value in values.items():
        found += settings(value, f"{prefix}{name}.") if isinstance(value, dict) else [f"{prefix}{name}={value}"]
    return found


def environment_with(changed: Mapping[str, str]) -> dict[str, str]:
    """Ours, with the commands of this interpreter's environment first in the search path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return os.environ | changed | {"PATH": path}


def say(line: str) -> None:
    """To stderr, with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def main() -> int:
    profiles = ", ".join(sorted(path.stem for path in HERE.glob("*.yaml")))
    parser = argparse.ArgumentParser(
        prog="scripts/meta_evolution.sh",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"settings (key=value):\n{describe_config(LoopConfig)}",
    )
    parser.add_argument("profile", nargs="?", default="laptop", metavar="PROFILE", help=f"one of {profiles}")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="settings; see below")
    options = parser.parse_args()

    def command() -> int:
        if not (HERE / f"{options.profile}.yaml").is_file():
            raise ConfigError(f"profile: must be one of {profiles}, got {options.profile!r}")
        config = load_config(LoopConfig, options.profile, configs=HERE, overrides=options.overrides)
        Loop(config).run()
        return 0

    return run_command(command)


if __name__ == "__main__":
    sys.exit(main())
