"""The settings of the closed loop; profiles are the YAML files beside this one."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from openmle_gym.anchors import ANCHORS, HELD_OUT_TASKS, TRAIN_TASKS
from openmle_gym.errors import ConfigError

HERE = Path(__file__).parent
ABLATIONS = {
    "group_normalised": ["rewards.advantage=group_normalised"],
    "static_bounds": ["rewards.bounds=theoretical"],
}
"""What `openmle-erl train` is told instead of entropic advantages, and of adaptive bounds."""


@dataclass
class LoopConfig:
    """One closed loop."""

    run_dir: str = "runs/meta_evolution"
    """Where everything of it is kept; the same command goes on with a loop that was stopped."""
    train: list[str] = field(default_factory=lambda: list(TRAIN_TASKS))
    """Anchors that are learnt from."""
    held_out: list[str] = field(default_factory=lambda: list(HELD_OUT_TASKS))
    """Anchors that are measured on, and never learnt from."""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    """One policy is trained with each."""
    rounds: int = 1
    """With 2, searches of the trained policy on train tasks teach a second generation."""
    ablations: list[str] = field(default_factory=list)
    """Trained too, with the same seeds and samples: group_normalised, static_bounds."""
    runner: str = "zygote"
    """What holds programs in the sandbox service: zygote, docker, bubblewrap."""
    sandbox_workers: int = 2
    """Programs that run at once."""
    timeout_seconds: float = 6.0
    """What a program is told that it has; recipes plan for a tenth of it."""
    prompt: dict[str, int] = field(default_factory=dict)
    """Budgets of every prompt: teacher's, trainer's and search's are the same."""
    slip_rate: float = 0.15
    """The share of the teacher's Drafts and Improves with a slip in them, so that there is something to debug."""
    drafts: int = 40
    """The teacher's independent Drafts of each train task."""
    teacher_attempts: int = 30
    """Attempts of the teacher's search on each train task."""
    sft: dict[str, Any] = field(default_factory=dict)
    """Settings of `openmle-erl sft`, beside the profile `laptop`."""
    rl: dict[str, Any] = field(default_factory=dict)
    """Settings of `openmle-erl train`, beside the profile `rl_laptop`."""
    reply_tokens: int = 640
    """The longest reply in measurements and searches."""
    measured_drafts: int = 48
    """Drafts of each held-out task that each policy is measured by; the trained policies share them."""
    measured_train_drafts: int = 12
    """Likewise, of each train task."""
    search_attempts: int = 24
    """Attempts of each search on a held-out task."""
    search_runs: int = 3
    """Searches on each held-out task by each policy."""
    launch: list[str] = field(default_factory=list)
    """Profile `cluster` only: settings of `openmle-erl launch`."""

    def __post_init__(self) -> None:
        for name in ("train", "held_out"):
            unknown = [task for task in getattr(self, name) if task not in ANCHORS]
            if unknown or not getattr(self, name):
                raise ConfigError(f"{name}: no anchors {', '.join(unknown) or '(the list is empty)'}")
        shared = {ANCHORS[task].data for task in self.train} & {ANCHORS[task].data for task in self.held_out}
        if shared:
            raise ConfigError(f"held_out: trained on too, in other words or the same: {', '.join(sorted(shared))}")
        if unknown := set(self.ablations) - ABLATIONS.keys():
            raise ConfigError(f"ablations: must be among {', '.join(ABLATIONS)}, got {', '.join(sorted(unknown))}")
        for name in ("rounds", "drafts", "teacher_attempts", "measured_drafts", "search_attempts", "search_runs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: must be at least 1, got {getattr(self, name)}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"seeds: must be different numbers, and at least one, got {self.seeds}")
