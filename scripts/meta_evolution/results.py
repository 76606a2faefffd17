"""What a loop came to, in numbers: reads its folder, computes, and changes nothing.

Utility of a Draft: the share of the task's reference leaderboard that its test score beats; 0 where it has no test score.
Standard errors and the exact permutation test are over tasks, so the spread from task to task is in them.
"""

import itertools
import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
from openmle_erl.rewards import PRESETS, entropic_advantages, group_normalised_advantages, group_rewards
from openmle_erl.rl.config import RLConfig
from openmle_erl.rl.groups import GroupState
from openmle_erl.rl.opening import EXPERIENCE, learn_task
from openmle_erl.rl.queue import GroupQueue
from openmle_evo.evaluation.compare import Comparison, compare
from openmle_evo.evaluation.drafts import STORE, draft_cards, draft_outcomes
from openmle_evo.evaluation.results import RunOutcome, SuiteResult, beaten, summarise
from openmle_evo.evaluation.statistics import paired_permutation_test, standard_error
from openmle_evo.evaluation.suite import MANIFEST, outcomes
from openmle_gym.anchors import ANCHORS
from openmle_gym.contracts import Contract
from openmle_gym.store import CardStore
from openmle_gym.task import load_package

LEAST_SAMPLES = 250
"""Behind any rate that is claimed."""
SideName = Literal["held-out", "train"]
SIDES: tuple[SideName, ...] = ("held-out", "train")
PLAIN = ("recipes", "base", "trained")
"""Every other policy is an ablation."""
COMPARED = (("trained", "base"), ("trained", "recipes"), ("max-trained", "trained"), ("max-recipes", "recipes"))
"""Searches, matched by task and run."""
CURVES = (
    *("reward/mean", "progress/mean", "percentile/mean", "progress/best_of_group", "tokens/reply", "outcome/success"),
    *("advantage/zero_variance_share", "train/entropy", "train/clip_fraction", "seconds/step", "staleness/mean"),
    *("samples", "train/kl"),
)


class Single(Contract):
    """Single Drafts of one policy, its seeds pooled."""

    samples: int
    utility: float
    """The mean over tasks."""
    utility_of_valid: float
    valid: float
    """The share that has a test score."""
    standard_error_of_samples: float | None
    by_task: dict[str, float]
    tokens: int
    outcomes: dict[str, float]
    """How they ended, as shares."""

    @property
    def enough(self) -> bool:
        """There are as many as a claim needs."""
        return self.samples >= LEAST_SAMPLES


class Difference(Contract):
    """One policy less another, matched by task."""

    difference: float
    standard_error: float | None
    """Over tasks; None for one task."""
    p_value: float | None
    exact: bool | None
    by_task: dict[str, float]


class Side(Contract):
    """Single Drafts on the tasks of one side, by policy."""

    drafts: dict[str, Single]
    less_base: dict[str, Difference]
    ablations: dict[str, Difference]
    """The trained policy less each that was trained otherwise: what the thing left out is worth."""


class Gate(Contract):
    """Whether training helped."""

    passed: bool
    why: str


class Searches(Contract):
    """Searches of one policy on held-out tasks."""

    suite: SuiteResult
    attempts: int
    valid_attempts: int
    """With a validation score."""


class Round(Contract):
    """One generation."""

    name: str
    examples: int
    """Of its corpus."""
    sides: dict[SideName, Side]
    gate: Gate
    searches: dict[str, Searches]
    searches_compared: dict[str, list[Comparison]]
    """By "one less other"."""


class Generation(Contract):
    """A policy less the same policy of the round before, by single Drafts."""

    round: str
    policy: str
    side: SideName
    less_before: Difference


class Training(Contract):
    """One run of reinforcement learning."""

    steps: int
    samples: int
    executions: int
    """Programs that were run: no reply without one, none that does not parse, and no duplicate."""
    fates: dict[str, int]
    duplicates: dict[str, int]
    curves: dict[str, list[float | None]]
    """One number a step."""


class Signal(Contract):
    """What entropic weighting and adaptive bounds did to the very groups that were trained on."""

    groups: int
    """With a signal."""
    entropic_advantage: float
    """The mean, over groups, of the best candidate's advantage (the paper's figure 8a)."""
    group_normalised_advantage: float
    adaptive_resolution: float
    """The mean, over groups with two scores or more, of the part of the reward range that their valid programs take."""
    static_resolution: float


class Results(Contract):
    """All numbers of a loop."""

    tasks: dict[SideName, list[str]]
    synthetic: list[str]
    seconds: dict[str, float]
    """Wall clock of each stage, over all its lives."""
    rounds: list[Round]
    generations: list[Generation]
    training: dict[str, Training]
    signal: Signal | None
    """None where no group had one."""


def results(run: Path) -> Results:
    """Reads a loop's folder."""
    tasks: dict[SideName, list[str]] = {
        side: [path.name for path in packages_of(run / "round-1/drafts" / side)] for side in SIDES
    }
    rounds = [round_results(run, folder) for folder in sorted(run.glob("round-*"))]
    return Results(
        tasks=tasks,
        synthetic=[name for names in tasks.values() for name in names if ANCHORS[name].synthetic],
        seconds=seconds(run),
        rounds=rounds,
        generations=[each for before, after in itertools.pairwise(rounds) for each in generations(before, after)],
        training={folder.name: training(folder) for folder in sorted((run / "rl").glob("*"))},
        signal=signal_of(run),
    )


def packages_of(folder: Path) -> list[Path]:
    """The packages that the first suite in a folder is about."""
    suite = next(iter(sorted(folder.glob(f"*/{MANIFEST}"))), None)
    return [Path(each) for each in json.loads(suite.read_text(encoding="utf-8"))["tasks"]] if suite else []


def seconds(run: Path) -> dict[str, float]:
    """See `Results`."""
    spent: dict[str, float] = defaultdict(float)
    for line in (run / "seconds.tsv").read_text(encoding="utf-8").splitlines():
        name, value = line.split("\t")
        spent[name] += float(value)
    return dict(spent)


def round_results(run: Path, folder: Path) -> Round:
    """One generation: corpus, single Drafts, searches."""
    corpus = json.loads((run / "stages" / f"{folder.name}-corpus.json").read_text(encoding="utf-8"))
    sides: dict[SideName, Side] = {side: side_results(folder / "drafts" / side) for side in SIDES}
    searched = by_policy(folder / "search", MANIFEST)
    ended = {name: pooled(paths, outcomes) for name, paths in searched.items()}
    return Round(
        name=folder.name,
        examples=corpus["examples"],
        sides=sides,
        gate=gate(sides["held-out"]),
        searches={name: searches(searched[name], each) for name, each in ended.items() if each},
        searches_compared={
            f"{name} less {other}": compare(ended[name], ended[other])
            for name, other in COMPARED
            if ended.get(name) and ended.get(other)
        },
    )


def side_results(folder: Path) -> Side:
    """Single Drafts on the tasks of one side."""
    suites = by_policy(folder, STORE)
    single = {name: pooled(paths, draft_outcomes) for name, paths in suites.items()}
    return Side(
        drafts={name: single_drafts(each, outcome_shares(suites[name])) for name, each in single.items()},
        less_base={name: less(single, name, "base") for name in single if "base" in single and name != "base"},
        ablations={name: less(single, "trained", name) for name in single if name not in PLAIN and "trained" in single},
    )


def generations(before: Round, after: Round) -> list[Generation]:
    """What one round's policies are worth above the last one's."""
    return [
        Generation(
            round=after.name,
            policy=name,
            side=side,
            less_before=difference(drafts[name].by_task, before.sides[side].drafts[name].by_task),
        )
        for side, drafts in ((side, found.drafts) for side, found in after.sides.items())
        for name in drafts
        if name in before.sides[side].drafts
    ]


def less(single: Mapping[str, Sequence[RunOutcome]], name: str, other: str) -> Difference:
    """One policy's utility less another's."""
    return difference(by_task(single[name], beaten), by_task(single[other], beaten))


def searches(suites: Sequence[Path], ended: Sequence[RunOutcome]) -> Searches:
    """One policy's, with their attempts counted."""
    attempts = valid = 0
    for store in (path for suite in suites for path in suite.glob("*/run-*/store.sqlite")):
        with closing(CardStore(store)) as cards:
            found = cards.cards()
        attempts += len(found)
        valid += sum(card.validation is not None for card in found)
    return Searches(suite=summarise(ended), attempts=attempts, valid_attempts=valid)


def by_policy(folder: Path, mark: str) -> dict[str, list[Path]]:
    """The suites in a folder by policy; those of differently seeded training are one policy's."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(folder.glob(f"*/{mark}")):
        name = path.parent.name
        head, _, tail = name.rpartition("-")
        found[head if tail.isdigit() else name].append(path.parent)
    return dict(found)


def pooled(paths: Sequence[Path], read: Callable[[Path], list[RunOutcome]]) -> list[RunOutcome]:
    """The outcomes of all suites; their runs are numbered on, so that each is a run of its own."""
    found: list[RunOutcome] = []
    for path in paths:
        first = 1 + max((each.run for each in found), default=-1)
        found += [each.model_copy(update={"run": first + each.run}) for each in read(path)]
    return found


def by_task(outcomes: Sequence[RunOutcome], measure: Callable[[RunOutcome], float]) -> dict[str, float]:
    """The mean of each task."""
    values: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        values[outcome.task].append(measure(outcome))
    return {task: statistics.fmean(each) for task, each in sorted(values.items())}


def single_drafts(drafts: Sequence[RunOutcome], outcomes: Mapping[str, float]) -> Single:
    """Utility and Valid Rate of single Drafts, with their standard errors over samples."""
    tasks = by_task(drafts, beaten)
    return Single(
        samples=len(drafts),
        utility=statistics.fmean(tasks.values()),
        utility_of_valid=statistics.fmean([beaten(each) for each in drafts if each.valid] or [math.nan]),
        valid=statistics.fmean(float(each.valid) for each in drafts),
        standard_error_of_samples=standard_error([beaten(each) for each in drafts]),
        by_task=tasks,
        tokens=sum(each.tokens for each in drafts),
        outcomes=dict(outcomes),
    )


def difference(mine: Mapping[str, float], theirs: Mapping[str, float]) -> Difference:
    """The mean difference over the tasks that both have, with its error and an exact permutation test."""
    apart = {task: mine[task] - theirs[task] for task in mine if task in theirs}
    test = paired_permutation_test(list(apart.values()))
    return Difference(
        difference=statistics.fmean(apart.values()),
        standard_error=standard_error(list(apart.values())),
        p_value=test.p_value if test else None,
        exact=test.exact if test else None,
        by_task=apart,
    )


def gate(side: Side) -> Gate:
    """Whether training helped: held-out Draft utility above base by more than two standard errors over tasks."""
    found = side.less_base.get("trained")
    if found is None or found.standard_error is None:
        return Gate(passed=False, why="there is nothing to compare, or one task alone")
    bound = 2.0 * found.standard_error
    enough = side.drafts["trained"].enough and side.drafts["base"].enough
    why = f"{found.difference:+.3f} against 2 SE = {bound:.3f}"
    return Gate(
        passed=found.difference > bound and enough,
        why=why if enough else f"{why}; fewer than {LEAST_SAMPLES} samples",
    )


def outcome_shares(paths: Sequence[Path]) -> dict[str, float]:
    """How single Drafts ended, as shares."""
    counts = Counter(str(card.outcome) for path in paths for card in draft_cards(path))
    return {outcome: count / counts.total() for outcome, count in counts.most_common()}


def training(folder: Path) -> Training:
    """A training run, with its curves."""
    with closing(GroupQueue(folder / EXPERIENCE)) as queue, closing(CardStore(folder / EXPERIENCE)) as store:
        steps = queue.steps()
        fates, duplicates = queue.fates(), queue.duplicates()
        cards = store.cards()
    ran = sum(card.sandbox_seconds > 0.0 and not card.run_id.endswith("-eval") for card in cards)
    return Training(
        steps=len(steps),
        samples=sum(fates.values()),
        executions=ran,
        fates=fates,
        duplicates={str(whose): count for whose, count in duplicates.items()},
        curves={name: [step.get(name) for step in steps] for name in CURVES if steps and name in steps[-1]},
    )


def signal_of(run: Path) -> Signal | None:
    """See `Signal`."""
    entropic: list[float] = []
    normalised: list[float] = []
    adaptive: list[float] = []
    static: list[float] = []
    for folder in sorted((run / "rl").glob("round-1-rl-seed-*")):
        settings = json.loads((folder / "run.json").read_text(encoding="utf-8"))["settings"]
        packages = {Path(path).name: load_package(path) for path in settings["tasks"]}
        facts = {
            name: learn_task(each, RLConfig(tasks=settings["tasks"], run_dir="", model="")).scoring.task
            for name, each in packages.items()
        }
        with closing(CardStore(folder / EXPERIENCE)) as store, closing(GroupQueue(folder / EXPERIENCE)) as queue:
            cards = {card.attempt: card for card in store.cards() if not card.run_id.endswith("-eval")}
            groups = queue.groups(GroupState.TRAINED, cards)
        for group in groups:
            judged = [member for member in group.members if member.card is not None]
            rewards = np.array([member.reward for member in judged])
            if len(judged) < 2 or np.ptp(rewards) == 0.0:
                continue
            ids = np.zeros(len(judged), dtype=int)
            entropic.append(float(np.max(entropic_advantages(rewards, ids))))
            normalised.append(float(np.max(group_normalised_advantages(rewards, ids))))
            scored = [member for member in judged if member.card and member.card.validation]
            if len(scored) < 2:
                continue
            values = [member.card.validation.value for member in scored if member.card and member.card.validation]
            fixed = group_rewards(
                values, task=facts[group.task], settings=replace(PRESETS["robust"], bounds_mode="theoretical")
            ).base_rewards
            adaptive.append(float(np.ptp([member.base_reward for member in scored])))
            static.append(float(np.ptp(fixed)))
    if not entropic:
        return None
    return Signal(
        groups=len(entropic),
        entropic_advantage=statistics.fmean(entropic),
        group_normalised_advantage=statistics.fmean(normalised),
        adaptive_resolution=statistics.fmean(adaptive or [math.nan]),
        static_resolution=statistics.fmean(static or [math.nan]),
    )
