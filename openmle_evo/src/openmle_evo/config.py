"""The settings of a search. Published values are the defaults (specs of the original's search, §3 and §11.2)."""

from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import MISSING
from openmle_gym.errors import ConfigError
from openmle_gym.memory import MemoryConfig
from openmle_gym.policies.settings import PolicyConfig
from openmle_gym.prompts import PromptConfig
from openmle_gym.review import ReviewConfig

CONFIGS = Path(__file__).parent / "configs"


@dataclass
class MixtureConfig:
    """Policy profiles for single purposes; the policy answers for all others."""

    draft: str | None = None
    """Who drafts."""
    improve: str | None = None
    """Who improves."""
    debug: str | None = None
    """Who mends."""
    crossover: str | None = None
    """Who joins."""
    note: str | None = None
    """Who writes memory's notes, where `memory.notes` wants a model."""
    review: str | None = None
    """Who judges programs, where `review.judge` is set."""

    @property
    def profiles(self) -> dict[str, str]:
        """The profiles by purpose; nothing where there is none."""
        return {purpose: name for purpose, name in vars(self).items() if name}


@dataclass
class SelectionConfig:
    """How parents are drawn: softmax((score * s + gain * d + novelty * n - visits * v) / temperature)."""

    score: float = 1.0
    """Weight of the candidate's own score."""
    gain: float = 0.4
    """Weight of its improvement over its best parent."""
    novelty: float = 0.25
    """Weight of its method family's rarity."""
    visits: float = 0.0
    """How much a candidate loses for having been a parent: this times log(1 + how often)."""
    weights: str = "fixed"
    """`fixed`: as above; `learned`: one of four emphases per attempt, by how often each has set a new best on this
    task."""
    normalise: str = "minmax"
    """How scores and gains become comparable: `minmax`, `rank`, `hybrid` (half of each) or `robust` (quartiles, so that
    an outlier does not flatten the rest)."""
    temperature: float = 1.0
    """Softmax temperature at the start; smaller is greedier."""
    final_temperature: float | None = None
    """Temperature at the last attempt, reached in equal steps; by default it stays."""
    distinct: bool = False
    """Count programs that differ in comments and layout alone as one candidate."""
    second_parent: str = "drawn"
    """Crossover's second parent: `drawn` as the first, or `complementary`: of another method family, where there is
    one."""

    def __post_init__(self) -> None:
        _more_than("selection.temperature", self.temperature, 0.0)
        if self.final_temperature is not None:
            _more_than("selection.final_temperature", self.final_temperature, 0.0)
        _one_of("selection.weights", self.weights, ("fixed", "learned"))
        _one_of("selection.normalise", self.normalise, ("minmax", "rank", "hybrid", "robust"))
        _one_of("selection.second_parent", self.second_parent, ("drawn", "complementary"))
        _at_least("selection.visits", self.visits, 0.0)


@dataclass
class IslandsConfig:
    """The populations that parents are drawn from."""

    count: int = 1
    """Populations that evolve apart."""
    max_size: int = 500
    """Programs on one island; beyond it the worst one leaves."""
    admission: str = "mean"
    """Which valid programs may be parents: those at least as good as the island's `mean`, `all`, or `novel`: all that
    differ from every member in more than comments and layout."""
    reset_every: int = 5
    """Attempts between two chances of a reset: a generation."""
    reset_probability: float = 0.0
    """Chance that the weaker half of the islands is then reduced to its best programs and takes in one migrant each."""

    def __post_init__(self) -> None:
        _at_least("islands.count", self.count, 1)
        _at_least("islands.max_size", self.max_size, 2)
        _one_of("islands.admission", self.admission, ("mean", "all", "novel"))
        _at_least("islands.reset_every", self.reset_every, 1)
        _fraction("islands.reset_probability", self.reset_probability)


@dataclass
class ScheduleConfig:
    """Which operator comes next."""

    kind: str = "evolve"
    """`evolve`: the four operators; `greedy`: Improve the best, now and then Debug a random failure; `best_of_n`:
    independent Drafts."""
    initial_drafts: int = 5
    """A run starts with so many Drafts, and the mending of those that fail, whatever else would be possible."""
    draft_probability: float = 0.0
    """Chance of a fresh Draft later on."""
    crossover_probability: float = 0.5
    """Chance of Crossover rather than Improve, once it is allowed."""
    crossover_from_attempt: int = 10
    """The first attempt that may be a Crossover: two generations of five."""
    debug_probability: float = 0.5
    """With `greedy`: chance of mending a failure rather than improving the best."""
    max_debug_depth: int = 10
    """How many Debug attempts in a row one failing program gets."""
    max_debug_seconds: float = 21600.0
    """No further Debug once one failing program and its mending took so long in the sandbox."""

    def __post_init__(self) -> None:
        _one_of("schedule.kind", self.kind, ("evolve", "greedy", "best_of_n"))
        _at_least("schedule.initial_drafts", self.initial_drafts, 1)
        _at_least("schedule.max_debug_depth", self.max_debug_depth, 0)
        _at_least("schedule.max_debug_seconds", self.max_debug_seconds, 0.0)
        for name in ("draft_probability", "crossover_probability", "debug_probability"):
            _fraction(f"schedule.{name}", getattr(self, name))


@dataclass
class BudgetConfig:
    """When a run stops. Waiting for a place in the sandbox is not charged; a resumed run goes on with what was spent."""

    attempts: int = 40
    """Judged attempts."""
    sandbox_seconds: float | None = None
    """Wall clock of programs and their grading, all workers together. Published: 43,200."""
    model_seconds: float | None = None
    """Wall clock of model calls, all workers together."""
    total_seconds: float | None = None
    """Sandbox and model seconds together. Published: 64,800."""
    wall_seconds: float | None = None
    """Wall clock of the search itself, over all its lives."""
    tokens: int | None = None
    """Prompt and completion tokens of all model calls, failed ones and notes included."""
    dollars: float | None = None
    """Cost of all model calls, by `policy.prompt_price` and `policy.completion_price`."""
    grace_seconds: float = 60.0
    """When the wall clock is spent, how long attempts under way may take to their end; then they are cancelled."""

    def __post_init__(self) -> None:
        _at_least("budget.attempts", self.attempts, 1)
        _at_least("budget.grace_seconds", self.grace_seconds, 0.0)
        for name in ("sandbox_seconds", "model_seconds", "total_seconds", "wall_seconds", "tokens", "dollars"):
            if (value := getattr(self, name)) is not None:
                _more_than(f"budget.{name}", value, 0.0)


@dataclass
class FinalConfig:
    """Which program is submitted in the end. All of it is decided on the validation split."""

    strategy: str = "best"
    """`best`: the best by validation; `top_k`: the best few are run again, and the best mean wins; `blend`: a weighted
    mean, or vote, of the best few's submissions, where it is better than the best alone."""
    programs: int = 5
    """`top_k` and `blend`: how many of the best programs are considered."""
    repeats: int = 3
    """`top_k`: how often each of them is run again."""
    blend_jobs: int = 40
    """`blend`: the most blends that are scored to find the weights."""

    def __post_init__(self) -> None:
        _one_of("final.strategy", self.strategy, ("best", "top_k", "blend"))
        _at_least("final.programs", self.programs, 1)
        _at_least("final.repeats", self.repeats, 1)
        _at_least("final.blend_jobs", self.blend_jobs, 1)


@dataclass
class SearchConfig:
    """`openmle-evo search`."""

    task: str = MISSING
    """The task package's folder."""
    data_dir: str | None = None
    """The package as the service sees it; by default the same path."""
    protocol: str = "holdout"
    """`holdout`: select on the hidden answers' validation half, submit on their test half; `two_package`: submit on
    `final_task`; `self_valid`: select on the scores that programs print themselves; `evaluator`: select on what a
    benchmark's own evaluator says, which is the end too (`openmle-evo evaluate benchmark=naturebench` alone)."""
    final_task: str | None = None
    """With `two_package`: the folder of the package that the chosen program is graded on, whole."""
    final_data_dir: str | None = None
    """That package as the service sees it; by default the same path."""
    run_dir: str | None = None
    """Where the run is kept; by default runs/<task>-<time>."""
    workers: int = 2
    """Attempts under way at once; may be more than the sandbox runs at once, so that it never waits for a reply. With 1 a run is the same each time it is run with the same seed and policy."""
    seed: int = 0
    """All randomness follows from it and from the attempt's number."""
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
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """Who answers: policy=recipes, policy=openai, policy=sglang, ..."""
    mixture: MixtureConfig = field(default_factory=MixtureConfig)
    """Who answers for single operators instead: mixture={improve: sglang, draft: recipes}."""
    skills: str | None = None
    """A folder of skill files (`openmle-evo distill`): experience from other tasks, as much as `prompt.skills` holds."""
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    """How parents are drawn."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """Which operator comes next."""
    islands: IslandsConfig = field(default_factory=IslandsConfig)
    """Where parents come from."""
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    """When the run stops."""
    final: FinalConfig = field(default_factory=FinalConfig)
    """What is submitted."""
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    """What operators are told of earlier attempts."""
    review: ReviewConfig = field(default_factory=ReviewConfig)
    """What is looked for in programs before they run."""
    prompt: PromptConfig = field(default_factory=PromptConfig)
    """How long prompts may be."""
    tokenizer: str = ""
    """A tokenizer.json; when set, the lengths in memory and prompt are tokens, else characters."""
    track: list[str] = field(default_factory=list)
    """Where the curves go as well: track=[tensorboard, wandb, mlflow], each where its package is installed."""

    def __post_init__(self) -> None:
        if self.policy.kind == "none":
            raise ConfigError("policy.kind: somebody must answer, got 'none'")
        _at_least("workers", self.workers, 1)
        _at_least("memory_mib", self.memory_mib, 64)
        _more_than("timeout_seconds", self.timeout_seconds, 0.0)
        for name in self.track:
            _one_of("track", name, ("tensorboard", "wandb", "mlflow"))
        _one_of("protocol", self.protocol, ("holdout", "two_package", "self_valid", "evaluator"))
        if (self.protocol == "two_package") != (self.final_task is not None):
            raise ConfigError("final_task: protocol=two_package needs it, and no other protocol takes it")
        if self.protocol == "self_valid" and self.final.strategy != "best":
            raise ConfigError(
                "final.strategy: protocol=self_valid chooses by printed scores, so only `best` goes with it"
            )
        if self.protocol == "evaluator" and self.final.strategy != "best":
            raise ConfigError("final.strategy: protocol=evaluator has no final submit, so only `best` goes with it")
        if self.review.judge and self.policy.kind == "recipes" and self.mixture.review is None:
            raise ConfigError("review.judge: needs a model: policy=..., or mixture.review=PROFILE")


def _at_least(name: str, value: float, least: float) -> None:
    if value < least:
        raise ConfigError(f"{name}: must be at least {least}, got {value}")


def _more_than(name: str, value: float, bound: float) -> None:
    if not value > bound:
        raise ConfigError(f"{name}: must be more than {bound}, got {value}")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name}: must be one of {', '.join(known)}, got {value!r}")


def _fraction(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name}: must be in [0, 1], got {value}")
