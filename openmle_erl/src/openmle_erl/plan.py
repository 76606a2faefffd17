"""`openmle-erl plan`: how long a step takes, what idles, and how many workers pay, before any machine is rented.

It is the learning loop itself, with engines, sandbox and trainer that only take time (`rl.simulation`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from openmle_gym.errors import ConfigError

if TYPE_CHECKING:
    from openmle_erl.rl.simulation import Simulated

WORTH_IT = 0.05
"""More workers pay as long as doubling them saves more than this share of a step."""
MOST_WORKERS = 4096


@dataclass
class PlanConfig:
    """A user's numbers. The defaults are the paper's asynchronous single node, as far as it tells."""

    tasks: int = 22
    """Tasks that are trained on."""
    steps: int = 20
    """Steps that are simulated."""
    groups_per_step: int = 16
    """Groups that one step trains on."""
    samples_per_group: int = 16
    """Samples of one group; 1 for a search, which has no trainer."""
    in_flight_groups: int = 0
    """Groups under way at once when asynchronous; 0: twice `groups_per_step`."""
    barrier_seconds: float = 1e9
    """How long a group whose first half is judged waits for the rest."""
    refills: float = 2.0
    """Groups without signal that a step replaces, for each of its groups."""
    runtime_seconds: float = 600.0
    """Median run time of a program on a median task."""
    task_sigma: float = 0.6
    """Spread of the tasks' medians: standard deviation of their logarithms."""
    runtime_sigma: float = 1.0
    """Spread of the run times within a task, likewise; 1.0 is a heavy tail."""
    timeout_seconds: float = 3600.0
    """When a program is ended."""
    valid_share: float = 0.75
    """Share of the programs that run to a score."""
    sandbox_workers: int = 128
    """Programs that run at once."""
    engines: int = 4
    """Rollout engines."""
    engine_slots: int = 64
    """Requests that one engine runs at once."""
    tokens_per_second: float = 40.0
    """Of one running request."""
    prompt_tokens: int = 6000
    """Of one prompt."""
    reply_tokens: int = 8000
    """Median length of a reply."""
    reply_sigma: float = 0.5
    """Spread of the lengths: standard deviation of their logarithms."""
    reply_tokens_limit: int = 24_576
    """The longest reply."""
    trainer_tokens_per_second: float = 4000.0
    """Of all trainer GPUs together, forward, backward and update."""
    synchronise_seconds: float = 30.0
    """Of giving an engine new weights."""
    seed: int = 0
    """Of all that is drawn."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            least = (
                0 if name in ("in_flight_groups", "barrier_seconds", "refills", "seed", "synchronise_seconds") else None
            )
            if least is None and not value > 0:
                raise ConfigError(f"{name}: must be more than 0, got {value}")
            if value < 0:
                raise ConfigError(f"{name}: must be 0 or more, got {value}")


class Row(NamedTuple):
    """One simulated set-up."""

    name: str
    step_minutes: float
    samples_per_hour: float
    trainer_idle: float
    engines_idle: float
    sandbox_idle: float
    staleness: float
    exposure_spread: int
    """The largest distance of a task's groups from the tasks' median."""


def plan(config: PlanConfig) -> list[Row]:
    """Synchronous and asynchronous with the user's numbers, then asynchronous with other counts of workers."""
    rows = [
        simulated_row("synchronous", config, asynchronous=False),
        simulated_row("asynchronous", config, asynchronous=True),
    ]
    for name in ("sandbox_workers", "engines"):
        for factor in (0.5, 2.0):
            changed = replace(config, **{name: max(1, round(factor * getattr(config, name)))})
            rows.append(simulated_row(f"asynchronous, {name}={getattr(changed, name)}", changed, asynchronous=True))
    return rows


def enough(config: PlanConfig, name: str, step_minutes: Callable[[PlanConfig], float] | None = None) -> int:
    """The least power of two of `sandbox_workers` or `engines` that doubling would not make a step 5 % shorter.

    Args:
        step_minutes: Of a set-up; by default it is simulated.
    """
    measure = step_minutes or (lambda changed: simulated_row("", changed, asynchronous=True).step_minutes)
    count = 1
    minutes = measure(replace(config, **{name: count}))
    while count < MOST_WORKERS:
        doubled = measure(replace(config, **{name: 2 * count}))
        if doubled > (1.0 - WORTH_IT) * minutes:
            break
        count, minutes = 2 * count, doubled
    return count


def simulated_row(name: str, config: PlanConfig, *, asynchronous: bool) -> Row:
    """Simulates one set-up."""
    from openmle_erl.rl.simulation import simulate  # which reads PlanConfig

    return row_of(name, config, simulate(config, asynchronous=asynchronous))


def row_of(name: str, config: PlanConfig, done: "Simulated") -> Row:
    """A simulated set-up as a row of the table."""
    return Row(
        name=name,
        step_minutes=done.step_seconds / 60.0,
        samples_per_hour=3600.0 * config.groups_per_step * config.samples_per_group / done.step_seconds,
        trainer_idle=1.0 - done.trainer_share,
        engines_idle=1.0 - done.engine_share,
        sandbox_idle=1.0 - done.sandbox_share,
        staleness=done.staleness,
        exposure_spread=spread(done),
    )


def spread(done: "Simulated") -> int:
    """The largest distance of a task's trained groups from the tasks' median."""
    counts = sorted(done.exposure.values())
    middle = counts[len(counts) // 2]
    return max(abs(count - middle) for count in counts)


def table(rows: Sequence[Row]) -> str:
    """The rows as text, for a terminal."""
    head = ("", "step, min", "samples/h", "trainer idle", "engines idle", "sandbox idle", "staleness", "task spread")
    cells = [
        head,
        *(
            (
                row.name,
                f"{row.step_minutes:.1f}",
                f"{row.samples_per_hour:.0f}",
                *(f"{share:.0%}" for share in (row.trainer_idle, row.engines_idle, row.sandbox_idle)),
                f"{row.staleness:.1f}",
                str(row.exposure_spread),
            )
            for row in rows
        ),
    ]
    widths = [max(len(line[place]) for line in cells) for place in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    )
