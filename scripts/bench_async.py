"""Synchronous against asynchronous rollouts, over matched steps of the real loop on a virtual clock; and store inserts.

    python scripts/bench_async.py [--steps 40] [--samples 8] [--output FILE.json]

Run times of programs are drawn from a heavy-tailed distribution; engines, sandbox and trainer only take time. The
goals are the paper's: 97.0 minutes a step against 50.8 (1.91 times), tasks within 2 groups of their median, and no
group that was finished and lost. An insert into the experience at 1,000 rows is to take less than 3 ms.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from openmle_erl.plan import PlanConfig, row_of, spread, table
from openmle_erl.rl.experience import Experience
from openmle_erl.rl.simulation import Simulated, simulate
from openmle_gym.experience import ExperienceCard, Selection
from openmle_gym.jobs import Outcome
from openmle_gym.operators import Operator
from openmle_gym.scores import ValidationScore
from openmle_gym.store import CardStore

GOAL_RATIO, GOAL_SPREAD, GOAL_INSERT_MS = 1.91, 2, 3.0


def main() -> int:
    """Prints a table and a verdict; exits with 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--samples", type=int, default=8, help="samples of a group; the paper's are 16")
    parser.add_argument("--output", type=Path, help="where to write the figures as JSON")
    options = parser.parse_args()

    config = PlanConfig(steps=options.steps, samples_per_group=options.samples, sandbox_workers=8 * options.samples)
    began = time.perf_counter()
    done = {name: simulate(config, asynchronous=name == "asynchronous") for name in ("synchronous", "asynchronous")}
    print(table([row_of(name, config, each) for name, each in done.items()]))
    insert_ms = store_insert_ms()
    ratio = done["synchronous"].step_seconds / done["asynchronous"].step_seconds
    figures = {
        "steps": options.steps,
        "synchronous_step_minutes": done["synchronous"].step_seconds / 60,
        "asynchronous_step_minutes": done["asynchronous"].step_seconds / 60,
        "ratio": ratio,
        "task_spread": spread(done["asynchronous"]),
        "finished_and_lost": sum(lost(each) for each in done.values()),
        "store_insert_ms": insert_ms,
        "bench_seconds": time.perf_counter() - began,
    }
    goals = {
        f"ratio >= {GOAL_RATIO}": ratio >= GOAL_RATIO,
        f"task_spread <= {GOAL_SPREAD}": figures["task_spread"] <= GOAL_SPREAD,
        "finished_and_lost == 0": figures["finished_and_lost"] == 0,
        f"store_insert_ms < {GOAL_INSERT_MS}": insert_ms < GOAL_INSERT_MS,
    }
    for name, value in figures.items():
        print(f"{name:28} {value:.2f}" if isinstance(value, float) else f"{name:28} {value}")
    for name, met in goals.items():
        print(f"{'met   ' if met else 'MISSED'} {name}")
    if options.output:
        options.output.write_text(json.dumps(figures, indent=2), encoding="utf-8")
    return 0 if all(goals.values()) else 1


def lost(done: Simulated) -> int:
    """Samples that were judged and that no step will ever see, but for those of groups without a signal."""
    return done.fates["late"] + done.fates["too_few"] + done.fates["stale"] + done.fates["infrastructure"]


def store_insert_ms(rows: int = 1000, measured: int = 200) -> float:
    """The median time of a card's way to disk and into parents, bounds and candidates, with so many rows there."""
    source = "import csv\n" + "\n".join(f"value_{n} = {n}" for n in range(120))
    with tempfile.TemporaryDirectory() as folder:
        experience = Experience(CardStore(Path(folder) / "experience.sqlite"), "run")
        times: list[float] = []
        for attempt in range(rows + measured):
            parents = (attempt // 2,) if attempt % 3 and attempt else ()
            score = ValidationScore(value=(attempt * 37 % 101) / 101, higher_is_better=True)
            card = ExperienceCard(
                run_id="run",
                task="one",
                attempt=attempt,
                operator=Operator.IMPROVE if parents else Operator.DRAFT,
                parents=parents,
                selection=Selection(reason="bench"),
                program_id=f"{attempt:016x}",
                source=f"{source}\nattempt = {attempt}\n",
                plan="A plan of some length. " * 20,
                outcome=Outcome.SUCCESS,
                validation=score,
                log_head="epoch 1 loss 0.5\n" * 100,
                finished_at="2026-01-01T00:00:00Z",
            )
            began = time.perf_counter()
            experience.write(card)
            experience.enter(card, score.value, group=attempt // 16)
            times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times[rows:])


if __name__ == "__main__":
    raise SystemExit(main())
