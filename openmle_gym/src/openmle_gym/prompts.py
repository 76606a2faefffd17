"""The only prompts of the four operators; search and training both build theirs here.

Every prompt has the same sections in the same order, so a model, a parser or a reader finds its way:

    system   the role
    user     # Operator: <name>     what this call is to do
             # Task                 the package's description
             # Facts                metric and direction, columns, limits
             # Data                 the public files, profiled
             # Parent program ...   for each parent: score or failure, then its source, then its output
             # Earlier attempts     optional
             # Output               the contract that every program keeps
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from openmle_gym.chat import Message
from openmle_gym.experience import ExperienceCard
from openmle_gym.jobs import Limits
from openmle_gym.manifest import Manifest
from openmle_gym.operators import Operator
from openmle_gym.preview import preview_data
from openmle_gym.task import TaskPackage

DESCRIPTION_CHARACTERS = 12_000
OUTPUT_CHARACTERS = 4_000
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


def public_task(package: TaskPackage) -> PublicTask:
    """Reads a package's public half."""
    return PublicTask(
        manifest=package.manifest,
        description=package.description,
        data=preview_data(package.public_dir, package.manifest.columns),
    )


def build_prompt(
    operator: Operator,
    task: PublicTask,
    parents: Sequence[ExperienceCard],
    *,
    limits: Limits,
    earlier: Sequence[ExperienceCard] = (),
) -> list[Message]:
    """Builds the chat messages of one operator call.

    Args:
        parents: As many as the operator takes, each of a kind that it accepts.
        earlier: Attempts to list in one line each, so that a Draft does not repeat them.

    Raises:
        ValueError: The parents are too few, too many, or of a kind that the operator does not accept.
    """
    if len(parents) != operator.parent_count:
        raise ValueError(f"{operator} takes {operator.parent_count} parents, got {len(parents)}")
    refused = [card.attempt for card in parents if not card.may_parent(operator)]
    if refused:
        raise ValueError(f"{operator} does not accept attempts {refused} as parents")
    sections = [
        _section(f"Operator: {operator}", _text(operator)),
        _section("Task", _middle_cut(task.description.strip(), DESCRIPTION_CHARACTERS)),
        _section("Facts", _facts(task.manifest, limits)),
        _section("Data", task.data),
        *(_parent(card, f"{index} of {len(parents)}") for index, card in enumerate(parents, start=1)),
    ]
    if earlier:
        sections.append(_section("Earlier attempts", "\n".join(_one_line(card) for card in earlier)))
    sections.append(_section("Output", _text("contract")))
    return [Message(role="system", content=SYSTEM), Message(role="user", content="\n\n".join(sections))]


@cache
def _text(name: str) -> str:
    return resources.files("openmle_gym").joinpath(f"prompts/{name}.md").read_text(encoding="utf-8").strip()


def _section(title: str, body: str) -> str:
    return f"# {title}\n\n{body}"


def _facts(manifest: Manifest, limits: Limits) -> str:
    metric = manifest.metric
    better = "higher is better" if metric.higher_is_better else "lower is better"
    return "\n".join(
        [
            f"- metric: {metric.name} ({better})",
            f"- task type: {manifest.task_type}",
            f"- id columns: {', '.join(manifest.columns.id)}",
            f"- target columns: {', '.join(manifest.columns.target)}",
            f"- predictions: {metric.prediction}",
            f"- time limit: {limits.wall_seconds:.0f} seconds",
            f"- memory limit: {limits.memory_bytes // 1024**2} MiB",
            f"- processor cores: {limits.cpus:g}",
        ]
    )


def _parent(card: ExperienceCard, position: str) -> str:
    """A parent's verdict, its source once, and its output once."""
    verdict = [f"- outcome: {card.outcome}"]
    if card.validation is not None:
        verdict.append(f"- validation score: {card.validation.value:.6g}")
    if card.error_signature:
        verdict.append(f"- error: {card.error_signature}")
    if card.message:
        verdict.append(f"- what went wrong: {card.message}")
    parts = ["\n".join(verdict), _fenced(card.source, "python")]
    output = "\n".join(part for part in (card.log_head, card.log_tail) if part).strip()
    if output:
        parts.append("Its output:\n\n" + _fenced(_middle_cut(output, OUTPUT_CHARACTERS), "text"))
    return _section(f"Parent program {position}", "\n\n".join(parts))


def _one_line(card: ExperienceCard) -> str:
    verdict = f"score {card.validation.value:.6g}" if card.validation else str(card.outcome)
    plan = " ".join(card.plan.split())
    return f"- {verdict}: {plan[:160]}"


def _fenced(text: str, language: str) -> str:
    """A fence longer than any run of backticks in the text."""
    longest, run = 0, 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _middle_cut(text: str, limit: int) -> str:
    """The text, or its two ends with a note of how much was cut between them."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"
