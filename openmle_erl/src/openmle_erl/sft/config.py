"""The settings of the corpus pipeline; published values are the defaults where they do not need a tokenizer."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import MISSING
from openmle_gym.errors import ConfigError
from openmle_gym.policies.settings import PolicyConfig
from openmle_gym.prompts import PromptConfig

CONFIGS = Path(__file__).parent.parent / "configs"
POLICIES = ("all", "scored", "medal", "score_threshold", "reward_threshold", "better_than_reference", "mixed")
MEDALS = ("gold", "silver", "bronze")


@dataclass
class AcceptanceConfig:
    """Which programs are good enough, by their validation scores."""

    policy: str = "scored"
    """all, scored, medal, score_threshold, reward_threshold, better_than_reference, or mixed: medal where a task has a
    leaderboard, else better_than_reference."""
    medals: list[str] = field(default_factory=lambda: list(MEDALS))
    """For medal and mixed: the medals that count."""
    score_threshold: float | None = None
    """For score_threshold: at least as good as this, by the metric's direction."""
    reward_threshold: float | None = None
    """For reward_threshold: the published SFT reward, 0.0723 to 0.5344, must be at least this."""
    references: str | None = None
    """For better_than_reference and mixed: JSON of scores by task, or JSON lines with `task` and `score`."""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ConfigError(f"acceptance.policy: must be one of {', '.join(POLICIES)}, got {self.policy!r}")
        unknown = [medal for medal in self.medals if medal not in MEDALS]
        if unknown or not self.medals:
            raise ConfigError(f"acceptance.medals: must be some of {', '.join(MEDALS)}, got {self.medals}")
        for name in ("score_threshold", "reward_threshold"):
            value = getattr(self, name)
            if self.policy == name and value is None:
                raise ConfigError(f"acceptance.{name}: missing; acceptance.policy={name} needs it")
            if value is not None and not math.isfinite(value):
                raise ConfigError(f"acceptance.{name}: must be finite, got {value}")


@dataclass
class FilterConfig:
    """What an accepted program must keep beside; nothing here applies to acceptance.policy=all."""

    tokenizer: str | None = None
    """A tokenizer's folder, or a tokenizer.json; needed to count tokens."""
    max_tokens: int | None = None
    """The most tokens of a whole conversation, by the tokenizer's chat template; equal is kept."""
    max_gap: float | None = None
    """The largest relative difference between the program's own score and the validation score; 0.12 is published."""
    require_own_score: bool = True
    """With max_gap: a program that prints no score of its own is dropped."""

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            _at_least("filters.max_tokens", self.max_tokens, 1)
            if self.tokenizer is None:
                raise ConfigError("filters.tokenizer: missing; filters.max_tokens needs it")
        if self.max_gap is not None:
            _at_least("filters.max_gap", self.max_gap, 0.0)


@dataclass
class CollectConfig:
    """`openmle-erl sft-data collect`."""

    tasks: list[str] = MISSING
    """Task packages' folders, or folders that hold packages: tasks=[tasks/diamonds,more_tasks]."""
    out: str = MISSING
    """The collection's folder; the same command goes on with a collection that was stopped."""
    batch: int = 4
    """Drafts of a task between two looks at its quota."""
    quota: int = 4
    """Accepted Drafts after which a task gets no new batch."""
    quota_with_leaderboard: int | None = None
    """The quota of tasks that have a leaderboard, where it differs."""
    limit: int = 32
    """The most Drafts of one task."""
    seed: int = 0
    """Every attempt's seed follows from it, the task and the attempt's number."""
    workers: int = 2
    """Attempts under way at once, over all tasks."""
    timeout_seconds: float = 60.0
    """Wall clock that one program gets."""
    memory_mib: int = 2048
    """Memory that one program is told it has, and gets when there is no service."""
    service: str | None = None
    """The sandbox service's address. Without one, programs run on this machine by `runner`."""
    runner: str = "auto"
    """Without a service: auto (the strongest there is), docker, bubblewrap or process."""
    allow_process: bool = False
    """Without a service: let `auto` fall back to plain processes, which isolate nothing."""
    docker_image: str = "openmle/sandbox:cpu"
    """Without a service: the image for Docker."""
    policy: PolicyConfig = field(default_factory=lambda: PolicyConfig(temperature=0.7, top_p=1.0))
    """Who writes the Drafts: policy=recipes, policy=openai, policy=sglang, ..."""
    acceptance: AcceptanceConfig = field(default_factory=AcceptanceConfig)
    """Which Drafts count towards the quota."""
    filters: FilterConfig = field(default_factory=FilterConfig)
    """What an accepted Draft must keep beside."""
    prompt: PromptConfig = field(default_factory=PromptConfig)
    """How long prompts may be, in characters."""

    def __post_init__(self) -> None:
        for name in ("batch", "quota", "limit", "workers"):
            _at_least(name, getattr(self, name), 1)
        if self.quota_with_leaderboard is not None:
            _at_least("quota_with_leaderboard", self.quota_with_leaderboard, 1)
        _at_least("memory_mib", self.memory_mib, 64)
        if self.quota > self.limit:
            raise ConfigError(f"quota: {self.quota}, but limit is {self.limit}, so it could never be met")
        if not 0 < self.timeout_seconds < math.inf:
            raise ConfigError(f"timeout_seconds: must be more than 0 and finite, got {self.timeout_seconds}")
        if self.policy.kind == "none":
            raise ConfigError("policy.kind: somebody must write the Drafts, got 'none'")


@dataclass
class ReservedConfig:
    """Tasks that no example may come from."""

    tasks: list[str] = field(default_factory=list)
    """Task packages' folders, folders that hold packages, or files of JSON lines with `task` and `description`."""
    similarity: float = 0.6
    """The share of word runs in common, of the shorter text, from which a description is a near-duplicate."""

    def __post_init__(self) -> None:
        if not 0.0 < self.similarity <= 1.0:
            raise ConfigError(f"reserved.similarity: must be in (0, 1], got {self.similarity}")


@dataclass
class BuildConfig:
    """`openmle-erl sft-data build`."""

    out: str = MISSING
    """The corpus's folder."""
    collections: list[str] = field(default_factory=list)
    """Folders that `collect` made."""
    runs: list[str] = field(default_factory=list)
    """Run directories of searches."""
    tasks: list[str] = field(default_factory=list)
    """Where the task packages are, when they are not where the runs found them."""
    acceptance: AcceptanceConfig = field(default_factory=AcceptanceConfig)
    """Which Drafts, and which endpoints of search segments, are good enough."""
    filters: FilterConfig = field(default_factory=FilterConfig)
    """What they must keep beside."""
    inheritance: float = 0.5
    """The share of a search step's changes that must survive into its segment's endpoint."""
    keep_failed_steps: bool = True
    """Keep inherited steps whose own program failed and was repaired later."""
    judge: PolicyConfig = field(default_factory=lambda: PolicyConfig(kind="none"))
    """A model that is asked, of each step that the syntax trees keep, whether the endpoint builds on it."""
    judge_workers: int = 8
    """Questions to the judge at once."""
    drafts_per_task: int | None = 4
    """The most parallel Drafts of one task, the best first; null keeps all."""
    segments_per_task: int | None = None
    """The most search segments of one task, the best endpoints first; null keeps all."""
    comments: bool = True
    """Whether programs keep their comments, in replies and as parents in prompts. A small model learns more without."""
    reserved: ReservedConfig = field(default_factory=ReservedConfig)
    """Tasks that no example may come from."""
    parquet: bool = False
    """Write corpus.parquet too; needs pyarrow."""
    overwrite: bool = False
    """Replace the corpus that is in `out`."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.inheritance <= 1.0:
            raise ConfigError(f"inheritance: must be in [0, 1], got {self.inheritance}")
        _at_least("judge_workers", self.judge_workers, 1)
        for name in ("drafts_per_task", "segments_per_task"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)


@dataclass
class AuditConfig:
    """`openmle-erl sft-data audit`."""

    tokenizer: str | None = None
    """A tokenizer's folder, or a tokenizer.json; without one no tokens are counted and no loss masks checked."""
    max_tokens: int | None = None
    """Rows of more tokens are a problem."""
    masks: int = 100
    """With a tokenizer that has a chat template: check the loss masks of so many rows; 0 checks none."""
    reserved: ReservedConfig = field(default_factory=ReservedConfig)
    """Tasks that no row may come from."""
    similarity: float = 0.9
    """Replies whose word runs agree to this share are listed as near-duplicates."""

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.tokenizer is None:
            raise ConfigError("tokenizer: missing; max_tokens needs it")
        _at_least("masks", self.masks, 0)
        if not 0.0 < self.similarity <= 1.0:
            raise ConfigError(f"similarity: must be in (0, 1], got {self.similarity}")


def _at_least(name: str, value: float, least: float) -> None:
    if not value >= least:
        raise ConfigError(f"{name}: must be at least {least}, got {value}")
