"""The settings of the closed loop; profiles are the YAML files beside this one."""

from dataclasses import dataclass, field
from pathlib import Path

from openmle_gym.anchors import ANCHORS, HELD_OUT_TASKS, TRAIN_TASKS
from openmle_gym.errors import ConfigError

HERE = Path(__file__).parent
ABLATIONS = {
    "group_normalised": ["rewards.advantage=group_normalised"],
    "static_bounds": ["rewards.bounds=theoretical"],
}
"""What training is told instead of entropic advantages, and instead of adaptive bounds."""

RECIPES = ("policy=recipes", "+policy.extra.general=true")
LOCAL_SERVER = ("openmle-erl", "serve", "{model}", "name=policy", "port={port}", "ready_file={ready}")


@dataclass
class LoopConfig:
    """One closed loop."""

    run_dir: str = "runs/meta_evolution"
    """Where everything of it is kept; the same command goes on with a loop that was stopped."""
    plan: bool = False
    """Print all commands, check their settings, and run nothing."""
    train: list[str] = field(default_factory=lambda: list(TRAIN_TASKS))
    """Tasks that are learnt from: anchors by name, or folders of packages."""
    held_out: list[str] = field(default_factory=lambda: list(HELD_OUT_TASKS))
    """Tasks that are measured on, and never learnt from: likewise."""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    """One policy is trained with each."""
    rounds: int = 1
    """With 2, searches by the trained policy on train tasks teach a second generation."""
    ablations: list[str] = field(default_factory=list)
    """Trained and measured too, with the same seeds and as many samples: group_normalised, static_bounds."""
    runner: str = "zygote"
    """What holds programs in the sandbox service: zygote, docker, bubblewrap."""
    sandbox_workers: int = 2
    """Programs that run at once."""
    sandbox: list[str] = field(default_factory=list)
    """Further settings of `openmle-sandbox serve`."""
    timeout_seconds: float = 6.0
    """What a program is told that it has; recipes plan for a tenth of it."""
    prompt: dict[str, int] = field(default_factory=dict)
    """Budgets of every prompt: teacher's, trainer's and search's are the same."""
    memory: str = "none"
    """What prompts tell of earlier attempts, everywhere: none, lineage."""
    teacher: list[str] = field(default_factory=lambda: [*RECIPES, "+policy.extra.slip_rate=0.15"])
    """Who writes the first corpus; slips give Debug something to mend."""
    drafts: int = 40
    """The teacher's independent Drafts of each train task."""
    teacher_attempts: int = 30
    """Attempts of the teacher's search on each train task."""
    sft_profile: str = "laptop"
    """Of `openmle-erl sft`."""
    model: str | None = None
    """What fine-tuning starts from; by default a new model."""
    tokenizer: str | None = None
    """For a new model: a folder beside this file with its tokenizer; by default one is made from the corpus."""
    sft: list[str] = field(default_factory=list)
    """Further settings of `openmle-erl sft`."""
    topology: str | None = None
    """Reinforcement learning on a Ray cluster by `openmle-erl launch`; by default on this machine."""
    launch: list[str] = field(default_factory=list)
    """Further settings of `openmle-erl launch`."""
    rl: list[str] = field(default_factory=list)
    """Further settings of the training, of the profile `rl_laptop` or the topology's."""
    serve: list[str] = field(default_factory=lambda: list(LOCAL_SERVER))
    """What serves a model while it is measured; `{model}`, `{port}`, `{ready}` stand for its folder, port and ready file."""
    reply_tokens: int = 640
    """The longest reply in measurements and searches."""
    measured_drafts: int = 48
    """Drafts of each held-out task that each policy is measured by; the differently seeded ones share them."""
    measured_train_drafts: int = 12
    """Likewise, of each train task."""
    search_attempts: int = 24
    """Attempts of each search on a held-out task."""
    search_runs: int = 3
    """Searches on each held-out task by each policy; the differently seeded ones share them."""

    def __post_init__(self) -> None:
        for name in ("train", "held_out"):
            unknown = [task for task in getattr(self, name) if task not in ANCHORS and "/" not in task]
            if unknown or not getattr(self, name):
                raise ConfigError(f"{name}: no anchors {', '.join(unknown) or '(the list is empty)'}")
        shared = self._data("train") & self._data("held_out")
        if shared:
            raise ConfigError(f"held_out: its data are trained on too: {', '.join(sorted(shared))}")
        if unknown := set(self.ablations) - ABLATIONS.keys():
            raise ConfigError(f"ablations: must be among {', '.join(ABLATIONS)}, got {', '.join(sorted(unknown))}")
        for name in ("rounds", "drafts", "teacher_attempts", "measured_drafts", "search_attempts", "search_runs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1, got {getattr(self, name)}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds: must be different numbers, and at least one, got {self.seeds}")

    def _data(self, side: str) -> set[str]:
        """What a side's anchors are made from, by data set and by file."""
        anchors = [ANCHORS[task] for task in getattr(self, side) if task in ANCHORS]
        return {each.data for each in anchors} | {digest for each in anchors for digest in each.raw_sha256.values()}
