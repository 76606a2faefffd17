"""The settings of a search. Published values are the defaults (specs of the original's search, §3 and §11.2)."""

from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import MISSING
from openmle_gym.errors import ConfigError

CONFIGS = Path(__file__).parent / "configs"


@dataclass
class PolicyConfig:
    """Who answers the operators' prompts."""

    kind: str = "recipes"
    """`recipes`: the built-in policy without a model; `openai`: any OpenAI-compatible endpoint."""
    base_url: str = ""
    """The endpoint, up to and including /v1; when empty, the environment variable OPENAI_BASE_URL."""
    model: str = ""
    """The model's name at the endpoint; when empty, the environment variable OPENMLE_MODEL."""
    api_key_variable: str = "OPENAI_API_KEY"
    """The environment variable that holds the key; it may be unset for endpoints without one."""
    temperature: float = 0.6
    """Sampling temperature."""
    top_p: float = 0.95
    """Nucleus sampling."""
    max_tokens: int = 32768
    """The most tokens of one reply, thinking included."""
    timeout_seconds: float = 1500.0
    """How long one call may take."""
    stream: bool = False
    """Ask the endpoint to stream its reply."""

    def __post_init__(self) -> None:
        if self.kind not in ("recipes", "openai"):
            raise ConfigError(f"policy.kind: must be recipes or openai, got {self.kind!r}")
        _at_least("policy.temperature", self.temperature, 0.0)
        _at_least("policy.max_tokens", self.max_tokens, 1)


@dataclass
class SelectionConfig:
    """How parents are drawn: softmax((score * s + gain * d + novelty * n) / temperature)."""

    score: float = 1.0
    """Weight of the candidate's own score."""
    gain: float = 0.4
    """Weight of its improvement over its best parent."""
    novelty: float = 0.25
    """Weight of its method family's rarity."""
    temperature: float = 1.0
    """Softmax temperature; smaller is greedier."""

    def __post_init__(self) -> None:
        _more_than("selection.temperature", self.temperature, 0.0)


@dataclass
class ScheduleConfig:
    """Which operator comes next."""

    initial_drafts: int = 5
    """A run starts with so many Drafts, and the mending of those that fail, whatever else would be possible."""
    draft_probability: float = 0.0
    """Chance of a fresh Draft later on."""
    crossover_probability: float = 0.5
    """Chance of Crossover rather than Improve, once it is allowed."""
    crossover_from_attempt: int = 10
    """The first attempt that may be a Crossover: two generations of five."""
    max_debug_depth: int = 10
    """How many Debug attempts in a row one failing program gets."""
    max_population: int = 500
    """Programs that may be parents; beyond it the worst one leaves."""

    def __post_init__(self) -> None:
        _at_least("schedule.initial_drafts", self.initial_drafts, 1)
        _at_least("schedule.max_debug_depth", self.max_debug_depth, 0)
        _at_least("schedule.max_population", self.max_population, 2)
        for name in ("draft_probability", "crossover_probability"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ConfigError(f"schedule.{name}: must be in [0, 1], got {value}")


@dataclass
class SearchConfig:
    """`openmle-evo search`."""

    task: str = MISSING
    """The task package's folder."""
    data_dir: str | None = None
    """The package as the service sees it; by default the same path."""
    run_dir: str | None = None
    """Where the run is kept; by default runs/<task>-<time>."""
    steps: int = 40
    """Stop after this many judged attempts."""
    sandbox_seconds: float | None = None
    """Stop when programs and their grading have taken this much wall clock in the sandbox, all workers together."""
    workers: int = 2
    """Attempts under way at once. With 1 a run is the same each time it is run with the same seed and policy."""
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
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    """How parents are drawn."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """Which operator comes next."""

    def __post_init__(self) -> None:
        _at_least("steps", self.steps, 1)
        _at_least("workers", self.workers, 1)
        _at_least("memory_mib", self.memory_mib, 64)
        _more_than("timeout_seconds", self.timeout_seconds, 0.0)
        if self.sandbox_seconds is not None:
            _more_than("sandbox_seconds", self.sandbox_seconds, 0.0)


def _at_least(name: str, value: float, least: float) -> None:
    if value < least:
        raise ConfigError(f"{name}: must be at least {least}, got {value}")


def _more_than(name: str, value: float, bound: float) -> None:
    if not value > bound:
        raise ConfigError(f"{name}: must be more than {bound}, got {value}")
