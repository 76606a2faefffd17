"""The closed loop: trains the improver on tasks, and measures it on other tasks. See docs/closed_loop.md.

    tasks -> teacher's programs -> corpus -> base (SFT) -> trained (RL) -> Drafts and searches on held-out tasks -> report

Every stage is a command of one of the libraries; `<run_dir>/stages/<stage>.sh` is its command line. A stage whose result
is there is not run again, and one that was stopped goes on where it was.
"""

import argparse
import contextlib
import os
import secrets
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from config import ABLATIONS, HERE, RECIPES, LoopConfig
from machinery import Machinery, Plan, say
from openmle_gym.anchors import ANCHORS
from openmle_gym.configuration import describe_config, load_config
from openmle_gym.console import run_command
from openmle_gym.errors import ConfigError

GRADE_KEY, SUBMIT_KEY = "OPENMLE_SANDBOX_GRADE_KEY", "OPENMLE_SANDBOX_KEY"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""While a model learns or answers beside running programs: threads that wait for each other would wait for those too."""
DRAFTS_AT_ONCE, ATTEMPTS_AT_ONCE = 24, 4


class Policy(NamedTuple):
    """Who is measured."""

    name: str
    model: Path | None
    """None for the recipe policy."""
    seed: int = 0
    runs: int = 1
    """Searches on each held-out task."""
    shares: int = 1
    """How many policies make up one figure, so that each gives so much less of it."""


class Loop:
    """One loop, from settings to stages."""

    def __init__(self, config: LoopConfig, machinery: Machinery) -> None:
        self.config = config
        self.machinery = machinery
        self.path = machinery.path
        self.service = ""

    def run(self) -> None:
        """All stages, in order."""
        config = self.config
        self.make_tasks()
        with self.sandbox() as self.service:
            searched = [self.teach()]
            start = Path(config.model) if config.model else None
            for number in range(1, config.rounds + 1):
                base = start = self.learn(number, searched, start)
                trained = [self.reinforce(f"round-{number}-rl", base, seed) for seed in config.seeds]
                self.measure(number, base, trained)
                if number < config.rounds:  # the search's own verified transitions teach the next generation
                    searched.append(self.search(f"round-{number}/own", trained[0], self.tasks("train")))
        # a loop that is given again may have got more rounds or ablations
        self.machinery.stage("report", [sys.executable, HERE / "report.py", self.path], again=True)
        print(self.machinery.result("report"), end="")

    def make_tasks(self) -> None:
        """Task packages of the anchors on both sides."""
        anchors = [task for task in (*self.config.train, *self.config.held_out) if task in ANCHORS]
        if anchors:
            output = ["--output", self.path / "tasks", "--allow-process"]
            self.machinery.stage("tasks", ["openmle-gym", "anchors", "build", *anchors, *output])

    def teach(self) -> Path:
        """The teacher's independent Drafts, and its searches, on train tasks; the searches' folder."""
        config, folder = self.config, self.path / "teacher"
        collect = [f"out={folder / 'drafts'}", f"quota={config.drafts}", f"limit={config.drafts}", "batch=8"]
        self.machinery.stage(
            "teacher-drafts",
            [
                "openmle-erl",
                "sft-data",
                "collect",
                self.tasks("train"),
                *collect,
                *self.places(ATTEMPTS_AT_ONCE),
                *self.prompts(),
                *config.teacher,
            ],
        )
        search = [f"suite_dir={folder / 'search'}", "runs=1", f"budget.attempts={config.teacher_attempts}"]
        self.machinery.stage(
            "teacher-search",
            [
                "openmle-evo",
                "evaluate",
                self.tasks("train"),
                *search,
                f"memory.kind={config.memory}",
                *self.places(ATTEMPTS_AT_ONCE),
                *self.prompts(),
                *config.teacher,
            ],
        )
        return folder / "search"

    def learn(self, number: int, searched: Sequence[Path], start: Path | None) -> Path:
        """Corpus and supervised fine-tuning; the base policy's weights."""
        folder, config = self.path / f"round-{number}", self.config
        runs = [str(manifest.parent) for suite in searched for manifest in sorted(suite.glob("*/run-*/manifest.json"))]
        reserved = f"reserved.{self.tasks('held_out')}"
        build = [
            f"out={folder / 'corpus'}",
            f"collections=[{self.path / 'teacher/drafts'}]",
            f"runs=[{','.join(runs)}]",
        ]
        build += [reserved, "drafts_per_task=null", "comments=false", "overwrite=true"]
        if self.machinery.stage(f"round-{number}-corpus", ["openmle-erl", "sft-data", "build", *build]):
            say((folder / "corpus/README.md").read_text(encoding="utf-8"))  # the data card
        corpus = folder / "corpus/corpus.jsonl"
        self.machinery.stage(f"round-{number}-audit", ["openmle-erl", "sft-data", "audit", corpus, reserved])
        fine_tune = ["--profile", config.sft_profile, f"corpus={corpus}", f"out={folder / 'sft'}", *config.sft]
        if start is not None:
            fine_tune += ["scratch.layers=0", f"engine.model={start}"]
        elif config.tokenizer is not None:
            fine_tune.append(f"scratch.tokenizer={HERE / config.tokenizer}")
        self.machinery.stage(f"round-{number}-sft", ["openmle-erl", "sft", *fine_tune])
        return folder / "sft/model"

    def reinforce(self, kind: str, base: Path, seed: int) -> Policy:
        """Reinforcement learning with one seed, and its ablations with the same; the trained policy."""
        config, name = self.config, f"{kind}-seed-{seed}"
        for ablation in config.ablations if kind == "round-1-rl" else ():
            self.train(f"round-1-{ablation}-seed-{seed}", base, seed, ABLATIONS[ablation])
        shares = len(config.seeds)
        return Policy(
            f"trained-{seed}", self.train(name, base, seed), seed, max(1, config.search_runs // shares), shares
        )

    def train(self, name: str, base: Path, seed: int, changed: Sequence[str] = ()) -> Path:
        """One training run; its last weights."""
        config, folder = self.config, self.path / "rl" / name
        settings = [self.tasks("train"), f"run_dir={folder}", f"seed={seed}", f"memory.kind={config.memory}"]
        settings += [f"sandbox.service={self.service}", f"sandbox.timeout_seconds={config.timeout_seconds}"]
        settings += [*self.prompts(), *config.rl, *changed]
        if config.topology is None:
            self.machinery.stage(name, ["openmle-erl", "train", "rl_laptop", f"model={base}", *settings], ONE_THREAD)
        else:
            launch = [f"topology={config.topology}", f"model={base}", *config.launch]
            self.machinery.stage(name, ["openmle-erl", "launch", *launch, "--", *settings])
        return max((folder / "weights").glob("version-*"), default=folder / "weights")

    def measure(self, number: int, base: Path, trained: Sequence[Policy]) -> None:
        """Single Drafts, and searches with one budget, of everybody who is compared."""
        config, runs = self.config, self.config.search_runs
        recipes = [Policy("recipes", None, runs=runs)] if number == 1 else []
        compared = [*recipes, Policy("base", base, runs=runs), *trained]
        ablated = [
            each._replace(
                name=f"{name}-{each.seed}", model=self.train(f"round-1-{name}-seed-{each.seed}", base, each.seed)
            )
            for name in (config.ablations if number == 1 else ())
            for each in trained
        ]
        for policy in (*compared, *ablated):
            self.drafts(f"round-{number}/drafts/held-out/{policy.name}", policy, "held_out", config.measured_drafts)
            self.drafts(f"round-{number}/drafts/train/{policy.name}", policy, "train", config.measured_train_drafts)
        for policy in compared:
            self.search(f"round-{number}/search/{policy.name}", policy, self.tasks("held_out"))
        skills = self.path / "skills"
        finished = sorted((self.path / "teacher/search").glob("*/run-0")) or [self.path / "teacher/search"]
        self.machinery.stage("skills", ["openmle-evo", "distill", *finished, "--out", skills, "--pool"])
        for policy in (*recipes, *trained):  # Evo-Max: more workers, and experience from the train tasks
            maximal = ["search=openmle_max", f"skills={skills}", "prompt.skills=600"]
            self.search(f"round-{number}/search/max-{policy.name}", policy, self.tasks("held_out"), maximal)

    def drafts(self, name: str, policy: Policy, side: str, count: int) -> None:
        """Single Drafts of each task of a side."""
        count = -(-count // policy.shares)
        with self.answering(policy, name) as answers:
            self.machinery.stage(
                stage_of(name),
                [
                    "openmle-evo",
                    "drafts",
                    self.tasks(side),
                    f"suite_dir={self.path / name}",
                    f"runs={count}",
                    *self.places(DRAFTS_AT_ONCE),
                    *self.prompts(),
                    *answers,
                    f"seed={policy.seed}",
                ],
            )

    def search(self, name: str, policy: Policy, tasks: str, changed: Sequence[str] = ()) -> Path:
        """Searches on tasks; their folder."""
        suite = [f"suite_dir={self.path / name}", f"runs={policy.runs}", f"seed={policy.seed}"]
        suite += [f"budget.attempts={self.config.search_attempts}", f"memory.kind={self.config.memory}"]
        with self.answering(policy, name) as answers:
            self.machinery.stage(
                stage_of(name),
                [
                    "openmle-evo",
                    "evaluate",
                    tasks,
                    *suite,
                    *self.places(ATTEMPTS_AT_ONCE),
                    *self.prompts(),
                    *answers,
                    *changed,
                ],
            )
        return self.path / name

    def tasks(self, side: str) -> str:
        """As `tasks=`."""
        names = getattr(self.config, side)
        return f"tasks=[{','.join(str(self.path / 'tasks' / name) if name in ANCHORS else name for name in names)}]"

    def places(self, workers: int) -> list[str]:
        """Where programs run, and how many attempts are under way."""
        return [f"service={self.service}", f"timeout_seconds={self.config.timeout_seconds}", f"workers={workers}"]

    def prompts(self) -> list[str]:
        """The budgets of prompts."""
        return [f"prompt.{name}={value}" for name, value in self.config.prompt.items()]

    @contextlib.contextmanager
    def sandbox(self) -> Iterator[str]:
        """The sandbox service on loopback, with a key that may submit and one that may also grade on the test split."""
        config = self.config
        os.environ[SUBMIT_KEY], os.environ[GRADE_KEY] = secrets.token_hex(16), secrets.token_hex(16)
        keys = f"submit:{os.environ[SUBMIT_KEY]},grade:{os.environ[GRADE_KEY]}"
        folders = {str(Path(each).parent) for each in (*config.train, *config.held_out) if each not in ANCHORS}
        roots = ",".join(sorted(folders | {str(self.path / "tasks")}))
        command = ["openmle-sandbox", "serve", f"task_roots=[{roots}]", f"state_dir={self.path / 'sandbox'}"]
        command += [f"workers={config.sandbox_workers}", f"runner={config.runner}", *config.sandbox]
        command += ["port={port}", "ready_file={ready}"]
        with self.machinery.server("sandbox", command, {"OPENMLE_SANDBOX_KEYS": keys}) as url:
            yield url

    @contextlib.contextmanager
    def answering(self, policy: Policy, name: str) -> Iterator[list[str]]:
        """The settings that name a policy, which is served meanwhile; nothing is served for a stage that is done."""
        if policy.model is None or self.machinery.done(stage_of(name)):
            yield list(RECIPES)
            return
        command = [each.replace("{model}", str(policy.model)) for each in self.config.serve]
        health = None if any("{ready}" in each for each in command) else "/health"
        with self.machinery.server("serve", command, ONE_THREAD, health=health) as url:
            yield [
                *("policy=openai", f"policy.base_url={url}/v1", "policy.model=policy", "policy.temperature=1.0"),
                *("policy.top_p=1.0", f"policy.max_tokens={self.config.reply_tokens}"),
            ]


def stage_of(name: str) -> str:
    """A folder's name as a stage's."""
    return name.replace("/", "-")


def _interrupt(_: int, __: object) -> None:
    raise KeyboardInterrupt


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
    signal.signal(signal.SIGTERM, _interrupt)  # as Ctrl-C: servers end with us, and the same command goes on

    def command() -> int:
        if not (HERE / f"{options.profile}.yaml").is_file():
            raise ConfigError(f"profile: must be one of {profiles}, got {options.profile!r}")
        config = load_config(LoopConfig, options.profile, configs=HERE, overrides=options.overrides)
        machinery = Plan if config.plan else Machinery
        Loop(config, machinery(Path(config.run_dir).resolve())).run()
        return 0

    return run_command(command)


if __name__ == "__main__":
    sys.exit(main())
