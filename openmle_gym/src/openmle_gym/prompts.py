"""The only prompts of the four operators; search and training both build theirs here.

Every prompt has the same sections in the same order, so a model, a parser or a reader finds its way:

    system   the role
    user     # Operator: <name>     what this call is to do
             # Task                 the package's description
             # Facts                metric and direction, columns, limits
             # Data                 the public files, profiled
             # Parent program ...   for each parent: score or failure, then its source, then its output
             # Earlier attempts     what `openmle_gym.memory` recalls
             # Experience ...       skills from other tasks
             # Output               the contract that every program keeps

Every section has a budget, and so has the whole prompt: where it is too long, sections give way in a fixed order.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources

from openmle_gym.chat import Message
from openmle_gym.contracts import Contract
from openmle_gym.errors import ConfigError
from openmle_gym.experience import ExperienceCard
from openmle_gym.jobs import Limits
from openmle_gym.manifest import Manifest
from openmle_gym.memory import Measure
from openmle_gym.operators import Operator
from openmle_gym.preview import LISTED_COLUMNS, preview_data
from openmle_gym.task import TaskPackage

SYSTEM = (
    "You are an expert machine-learning engineer. You write complete, correct Python programs that "
    "train models on tabular and other data and predict well on data they have not seen."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicTask:
    """All that a prompt may say of a task: nothing here was read from the private half of its package."""

    manifest: Manifest
    description: str
    data: str
    """The public files, profiled, as text."""
    contract: str | None = None
    """What every program keeps, where a benchmark has its own; such a task has no columns. None for a submission's."""


def public_task(package: TaskPackage, config: "PromptConfig | None" = None) -> PublicTask:
    """Reads a package's public half."""
    config = config or PromptConfig()
    return PublicTask(
        manifest=package.manifest,
        description=package.description,
        data=preview_data(package.public_dir, package.manifest.columns, listed=config.columns),
    )


@dataclass
class PromptConfig:
    """The most that a prompt and its sections take, in characters, or in tokens where a tokenizer is set; 0 leaves out."""

    length: int = 54_000
    """The whole prompt. Less than the largest Improve prompt published (54,300 characters)."""
    description: int = 12_000
    """The task's description."""
    data: int = 12_000
    """The profile of the public files."""
    columns: int = LISTED_COLUMNS
    """How many columns of a public table are profiled, beside its ids and targets."""
    source: int = 24_000
    """One parent's program."""
    output: int = 4_000
    """One parent's output."""
    packages: int = 4_000
    """The line that names the installed packages; a longer one is left out."""
    skills: int = 4_000
    """Experience from other tasks."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 0:
                raise ConfigError(f"prompt.{name}: must be 0 or more, got {value}")
        if self.length < 1_000:
            raise ConfigError(f"prompt.length: must be at least 1000, got {self.length}")

    def of_parent(self, parents: int) -> "PromptConfig":
        """With `source` and `output` such that all parents together take at most two thirds of the prompt."""
        share = 2 * self.length // 3 // max(1, parents)
        output = min(self.output, share // 4)
        return replace(self, output=output, source=min(self.source, share - 2 * output))


class Remaining(Contract):
    """What is left of a run's budgets; None where there is no such budget."""

    attempts: int | None = None
    sandbox_seconds: float | None = None
    wall_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What an operator is told beside the task and the parents."""

    limits: Limits
    remaining: Remaining = field(default_factory=Remaining)
    packages: tuple[str, ...] = ()
    """Installed where programs run, as `name version`."""
    earlier: Sequence[str] = ()
    """Lines of `openmle_gym.memory.remembered`."""
    skills: str = ""
    """Experience from other tasks."""


@dataclass(slots=True, kw_only=True)
class _Section:
    title: str
    body: str
    gives_way: int = 0
    """Sections with a higher number are cut first; 0 is never cut."""
    in_lines: bool = False
    """Cut after a line, not in the middle."""


def build_prompt(
    operator: Operator,
    task: PublicTask,
    parents: Sequence[ExperienceCard],
    around: Surroundings,
    *,
    config: PromptConfig | None = None,
    measure: Measure = len,
) -> list[Message]:
    """Builds the chat messages of one operator call.

    Args:
        parents: As many as the operator takes, each of a kind that it accepts.
        measure: In what unit the budgets of `config` count.

    Raises:
        ValueError: The parents are too few, too many, or of a kind that the operator does not accept.
    """
    config = config or PromptConfig()
    if len(parents) != operator.parent_count:
        raise ValueError(f"{operator} takes {operator.parent_count} parents, got {len(parents)}")
    refused = [card.attempt for card in parents if not card.may_parent(operator)]
    if refused:
        raise ValueError(f"{operator} does not accept attempts {refused} as parents")

    def cut(text: str, limit: int) -> str:
        return middle_cut(text, limit, measure)

    shares = config.of_parent(len(parents))
    sections = [
        _Section(title=f"Operator: {operator}", body=_text(operator)),
        _Section(title="Task", body=cut(task.description.strip(), config.description), gives_way=2),
        _Section(title="Facts", body=_facts(task, around, config.packages, measure)),
        _Section(title="Data", body=cut(task.data, config.data), gives_way=1),
        *(
            _Section(title=f"Parent program {index} of {len(parents)}", body=_parent(card, shares, cut))
            for index, card in enumerate(parents, start=1)
        ),
        _Section(title="Earlier attempts", body="\n".join(around.earlier), gives_way=4, in_lines=True),
        _Section(title="Experience from other tasks", body=cut(around.skills, config.skills), gives_way=3),
        _Section(title="Output", body=task.contract or _text("contract")),
    ]
    _fit(sections, config.length - measure(SYSTEM), measure)
    text = "\n\n".join(f"# {section.title}\n\n{section.body}" for section in sections if section.body)
    return [Message(role="system", content=SYSTEM), Message(role="user", content=text)]


def _fit(sections: list[_Section], budget: int, measure: Measure) -> None:
    """Cuts sections, in the order in which they give way, until all fit; parents, which have their share, stay."""

    def excess() -> int:
        return sum(measure(section.title) + measure(section.body) + 6 for section in sections) - budget

    for section in sorted(sections, key=lambda each: -each.gives_way):
        over = excess()
        if section.gives_way and over > 0:
            cut = _first_lines if section.in_lines else middle_cut
            section.body = cut(section.body, max(0, measure(section.body) - over), measure)


def _first_lines(text: str, limit: int, measure: Measure) -> str:
    lines = text.splitlines()
    while lines and measure("\n".join(lines)) > limit:
        lines.pop()
    return "\n".join(lines)


@cache
def _text(name: str) -> str:
    return resources.files("openmle_gym").joinpath(f"prompts/{name}.md").read_text(encoding="utf-8").strip()


def _facts(task: PublicTask, around: Surroundings, most_packages: int, measure: Measure) -> str:
    manifest, limits, remaining = task.manifest, around.limits, around.remaining
    metric, columns = manifest.metric, manifest.columns
    better = "higher is better" if metric.higher_is_better else "lower is better"
    lines = [
        f"- metric: {metric.name} ({better})",
        f"- task type: {manifest.task_type}",
    ]
    if task.contract is None:
        lines += [
            f"- id columns: {', '.join(columns.id)}",
            f"- target columns: {', '.join(columns.target)}",
            f"- predictions: {metric.prediction}",
        ]
    lines += [
        f"- time limit: {limits.wall_seconds:.0f} seconds",
        f"- memory limit: {limits.memory_bytes // 1024**2} MiB",
        f"- processor cores: {limits.cpus:g}",
    ]
    packages = f"- installed packages: {', '.join(around.packages)}"
    if around.packages and measure(packages) <= most_packages:
        lines.append(packages)
    if remaining.attempts is not None:
        lines.append(f"- attempts left after this one: {remaining.attempts}")
    if remaining.sandbox_seconds is not None:
        lines.append(f"- execution time left for all attempts: {remaining.sandbox_seconds:.0f} seconds")
    if remaining.wall_seconds is not None:
        lines.append(f"- time left: {remaining.wall_seconds:.0f} seconds")
    return "\n".join(lines)


def _parent(card: ExperienceCard, config: PromptConfig, cut: Callable[[str, int], str]) -> str:
    """A parent's verdict, its source once, and its output once."""
    verdict = [f"- outcome: {card.outcome}"]
    if card.validation is not None:
        verdict.append(f"- validation score: {card.validation.value:.6g}")
    if card.error_signature:
        verdict.append(f"- error: {card.error_signature}")
    if card.message:
        verdict.append(f"- what went wrong: {cut(card.message, config.output)}")
    parts = ["\n".join(verdict), _fenced(cut(card.source, config.source), "python")]
    output = "\n".join(part for part in (card.log_head, card.log_tail) if part).strip()
    if output and config.output:
        parts.append("Its output:\n\n" + _fenced(cut(output, config.output), "text"))
    return "\n\n".join(parts)


def summary_prompt(card: ExperienceCard, parent: ExperienceCard | None, *, length: int) -> list[Message]:
    """Asks for the note that memory keeps of an attempt.

    Args:
        parent: Its first parent; None for a Draft.
        length: About how many characters are wanted.
    """
    parts = [f"# Summary\n\n{_text('summary')}\n\nAt most {length} characters."]
    config = PromptConfig()
    for title, each in (("Parent", parent), ("Attempt", card)):
        if each is not None:
            body = _parent(each, config, lambda text, limit: middle_cut(text, limit, len))
            parts.append(f"# {title}\n\n{body}\n\nIts plan:\n\n{middle_cut(each.plan, 2_000, len)}")
    return [Message(role="system", content=SYSTEM), Message(role="user", content="\n\n".join(parts))]


def _fenced(text: str, language: str) -> str:
    """A fence longer than any run of backticks in the text."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def middle_cut(text: str, limit: int, measure: Measure) -> str:
    """The text, or its two ends with a note of how much was cut between them; within the limit, note included."""
    size = measure(text)
    if size <= limit:
        return text
    kept = len(text) * limit // size  # characters, to start with
    while kept > 0:
        half = kept // 2
        shown = f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[len(text) - half :]}"
        if measure(shown) <= limit:
            return shown
        kept -= max(32, kept // 50)
    return ""
