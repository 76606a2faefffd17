"""What a loop came to, in numbers: reads its folder, computes, and changes nothing.

Utility of a Draft: the share of the task's reference leaderboard that its test score beats; 0 where it has no test score.
Standard errors and the exact permutation test are over tasks, so the spread from task to task is in them.
"""

import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from openmle_erl.rewards import PRESETS, entropic_advantages, group_normalised_advantages, group_rewards
from openmle_erl.rl.config import RLConfig
from openmle_erl.rl.groups import GroupState
from openmle_erl.rl.opening import EXPERIENCE, learn_task
from openmle_erl.rl.queue import GroupQueue
from openmle_evo.evaluation.compare import compare
from openmle_evo.evaluation.drafts import STORE, draft_cards, draft_outcomes
from openmle_evo.evaluation.results import RunOutcome, beaten, summarise
from openmle_evo.evaluation.statistics import paired_permutation_test, standard_error
from openmle_evo.evaluation.suite import MANIFEST, outcomes
from openmle_gym.anchors import ANCHORS
from openmle_gym.store import CardStore
from openmle_gym.task import load_package

LEAST_SAMPLES = 250
"""Behind any rate that is claimed."""
COMPARED = (("trained", "base"), ("trained", "recipes"), ("max-trained", "trained"), ("max-recipes", "recipes"))
"""Searches, matched by task and run."""


def results(run: Path) -> dict[str, Any]:
    """All numbers of a loop."""
    rounds = sorted(run.glob("round-*"))
    return {
        "tasks": tasks(run),
        "seconds": seconds(run),
        "rounds": [round_results(run, folder) for folder in rounds],
        "training": {folder.name: training(folder) for folder in sorted((run / "rl").glob("*"))},
        "signal": signal_of(run),
    }


def tasks(run: Path) -> dict[str, Any]:
    """Who is on which side; synthetic ones by name."""
    sides = {side: packages_of(run / "round-1/drafts" / side) for side in ("train", "held-out")}
    names = {side: [path.name for path in found] for side, found in sides.items()}
    return names | {"synthetic": [name for found in names.values() for name in found if ANCHORS[name].synthetic]}


def packages_of(folder: Path) -> list[Path]:
    """The packages that the first suite in a folder is about."""
    suite = next(iter(sorted(folder.glob(f"*/{MANIFEST}"))), None)
    return [Path(each) for each in json.loads(suite.read_text(encoding="utf-8"))["tasks"]] if suite else []


def seconds(run: Path) -> dict[str, float]:
    """Wall clock of each stage, over all its lives."""
    spent: dict[str, float] = defaultdict(float)
    for line in (run / "seconds.tsv").read_text(encoding="utf-8").splitlines():
        name, value = line.split("\t")
        spent[name] += float(value)
    return dict(spent)


def round_results(run: Path, folder: Path) -> dict[str, Any]:
    """One generation: corpus, single Drafts, searches."""
    corpus = json.loads((run / "stages" / f"{folder.name}-corpus.json").read_text(encoding="utf-8"))
    sft = json.loads((run / "stages" / f"{folder.name}-sft.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = {"name": folder.name, "corpus": corpus, "sft": sft, "drafts": {}, "search": {}}
    for side in ("train", "held-out"):
        single = {
            name: pooled(paths, draft_outcomes) for name, paths in by_policy(folder / "drafts" / side, STORE).items()
        }
        shares = {name: outcome_shares(paths) for name, paths in by_policy(folder / "drafts" / side, STORE).items()}
        found["drafts"][side] = {name: drafts_of(each) | {"outcomes": shares[name]} for name, each in single.items()}
        found["drafts"][side] |= {"against base": against(single, "base", utility)}
        if side == "held-out":
            found["gate"] = gate(found["drafts"][side]["against base"].get("trained"), found["drafts"][side])
    searched = {name: pooled(paths, outcomes) for name, paths in by_policy(folder / "search", MANIFEST).items()}
    found["search"] = {name: summarise(each).model_dump(mode="json") for name, each in searched.items() if each}
    found["search_against"] = {
        f"{name} less {other}": [each.model_dump(mode="json") for each in compare(searched[name], searched[other])]
        for name, other in COMPARED
        if searched.get(name) and searched.get(other)
    }
    return found


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


def utility(outcome: RunOutcome) -> float:
    """Of one Draft."""
    return beaten(outcome)


def by_task(outcomes: Sequence[RunOutcome], measure: Callable[[RunOutcome], float]) -> dict[str, float]:
    """The mean of each task."""
    values: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes:
        values[outcome.task].append(measure(outcome))
    return {task: statistics.fmean(each) for task, each in sorted(values.items())}


def drafts_of(single: Sequence[RunOutcome]) -> dict[str, Any]:
    """Utility and Valid Rate of single Drafts, with their standard errors over samples."""
    tasks = by_task(single, utility)
    valid = [float(outcome.valid) for outcome in single]
    return {
        "samples": len(single),
        "enough": len(single) >= LEAST_SAMPLES,
        "utility": statistics.fmean(tasks.values()),
        "utility_of_valid": statistics.fmean([utility(each) for each in single if each.valid] or [math.nan]),
        "valid": statistics.fmean(valid),
        "standard_error_of_samples": standard_error([utility(each) for each in single]),
        "by_task": tasks,
        "tokens": sum(each.tokens for each in single),
    }


def against(
    single: dict[str, list[RunOutcome]], other: str, measure: Callable[[RunOutcome], float]
) -> dict[str, dict[str, Any]]:
    """Each policy less another, matched by task."""
    if other not in single:
        return {}
    reference = by_task(single[other], measure)
    return {name: difference(by_task(each, measure), reference) for name, each in single.items() if name != other}


def difference(mine: dict[str, float], theirs: dict[str, float]) -> dict[str, Any]:
    """The mean difference over the tasks that both have, with its error and an exact permutation test."""
    apart = {task: mine[task] - theirs[task] for task in mine if task in theirs}
    test = paired_permutation_test(list(apart.values()))
    return {
        "difference": statistics.fmean(apart.values()),
        "standard_error": standard_error(list(apart.values())),
        "p_value": test.p_value if test else None,
        "exact": test.exact if test else None,
        "by_task": apart,
    }


def gate(found: dict[str, Any] | None, drafts: dict[str, Any]) -> dict[str, Any]:
    """Whether training helped: held-out Draft utility above base by more than two standard errors over tasks."""
    if found is None or found["standard_error"] is None:
        return {"passed": False, "why": "there is nothing to compare, or one task alone"}
    bound = 2.0 * found["standard_error"]
    enough = drafts["trained"]["enough"] and drafts["base"]["enough"]
    return {
        "passed": bool(found["difference"] > bound and enough),
        "why": f"{found['difference']:+.3f} against 2 SE = {bound:.3f}"
        + ("" if enough else f"; fewer than {LEAST_SAMPLES} samples"),
    }


def outcome_shares(paths: Sequence[Path]) -> dict[str, float]:
    """How single Drafts ended, as shares."""
    counts = Counter(str(card.outcome) for path in paths for card in draft_cards(path))
    return {outcome: count / counts.total() for outcome, count in counts.most_common()}


def training(folder: Path) -> dict[str, Any]:
    """A training run's curves, one number a step."""
    with closing(GroupQueue(folder / EXPERIENCE)) as queue:
        steps = queue.steps()
        fates, duplicates = queue.fates(), queue.duplicates()
    names = ("reward/mean", "progress/mean", "percentile/mean", "progress/best_of_group", "tokens/reply")
    names += (
        "outcome/success",
        "advantage/zero_variance_share",
        "train/entropy",
        "train/clip_fraction",
        "seconds/step",
    )
    names += ("staleness/mean", "samples", "train/kl")
    curves = {name: [step.get(name) for step in steps] for name in names if steps and name in steps[-1]}
    return {
        "steps": len(steps),
        "samples": sum(fates.values()),
        "fates": fates,
        "duplicates": {str(whose): count for whose, count in duplicates.items()},
        "curves": curves,
    }


def signal_of(run: Path) -> dict[str, Any]:
    """What entropic weighting and adaptive bounds did to the very groups that were trained on.

    best_advantage: the mean, over groups, of the best candidate's advantage (the paper's figure 8a).
    resolution: the mean, over groups with two scores or more, of the part of the reward range that their valid programs take.
    """
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
        return {}
    return {
        "groups": len(entropic),
        "best_advantage": {
            "entropic": statistics.fmean(entropic),
            "group_normalised": statistics.fmean(normalised),
            "ratio": statistics.fmean(entropic) / statistics.fmean(normalised),
        },
        "resolution": {"adaptive": statistics.fmean(adaptive), "static": statistics.fmean(static)} if adaptive else {},
    }
