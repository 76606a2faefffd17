"""How recipes come about: drawn afresh, changed in one gene, joined from two, made cheaper."""

import math
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

from openmle_gym.policies.recipe_families import families
from openmle_gym.policies.recipe_grammar import (
    MOST_BRANCHES,
    MOST_EXPANDED,
    MOST_STEPS,
    SAMPLED_ROWS,
    Branch,
    Derivation,
    Encode,
    Ensemble,
    Fill,
    How,
    Model,
    Recipe,
    Reduce,
    Reduction,
    Scale,
    Step,
    TargetTransform,
    changed_genes,
    estimated_seconds,
)
from openmle_gym.policies.recipe_prompt import TaskFacts
from openmle_gym.policies.recipe_settings import Real, Whole


def affordable_seconds(facts: TaskFacts) -> float:
    """The most that a drawn program may take by the estimate."""
    return min(2.0, 0.1 * facts.wall_seconds)


def draw_recipe(rng: Random, facts: TaskFacts, *, avoid: str = "") -> Recipe:
    """A fresh recipe that fits the task and its time.

    Args:
        avoid: Text on earlier attempts; families whose titles it holds are taken less often.
    """
    how: How = rng.choices(("single", "average", "stack"), (0.76, 0.18, 0.06))[0]
    count = 1 if how == "single" else rng.choices((2, 3), (0.7, 0.3))[0]
    branches = tuple(draw_branch(rng, facts, avoid=avoid) for _ in range(count))
    weights = tuple(_WEIGHT.draw(rng) for _ in branches) if how == "average" else ()
    steps = tuple(draw_step(rng, facts) for _ in range(rng.choices((0, 1, 2), (0.6, 0.28, 0.12))[0]))
    recipe = Recipe(
        fill=rng.choice(_FILLS),
        steps=_distinct(steps) if facts.numeric_count else (),
        target=rng.choice(_targets(facts)),
        validation=rng.choices(("holdout", "cv3", "cv5"), (0.6, 0.28, 0.12))[0],
        ensemble=Ensemble(how=how, branches=branches, weights=weights),
        style=rng.randrange(2),
        seed=rng.randrange(1000),
    )
    return within_budget(recipe, facts)


def draw_branch(rng: Random, facts: TaskFacts, *, avoid: str = "") -> Branch:
    """One pipeline."""
    model = draw_model(rng, facts, avoid=avoid)
    family = families(facts.kind)[model.family]
    if family.full_rank:
        return Branch(scale="standard", encode="ordinal", model=model)
    scale = rng.choice(_scales(facts)) if rng.random() < (0.9 if family.wants_scaling else 0.3) else "none"
    reduce = draw_reduce(rng, facts) if rng.random() < 0.15 else Reduce()
    calibrate = "none"
    if facts.output == "probability" and rng.random() < 0.08:
        calibrate = rng.choice(("sigmoid", "isotonic"))
    bags = rng.choice((3, 5, 8)) if rng.random() < 0.07 else 1
    encode: Encode = rng.choices(_ENCODINGS, (0.5, 0.3, 0.2))[0]
    return Branch(scale=scale, encode=encode, reduce=reduce, model=model, bags=bags, calibrate=calibrate)


def draw_model(rng: Random, facts: TaskFacts, *, avoid: str = "", other_than: str = "") -> Model:
    """A family and settings for it."""
    rows = min(SAMPLED_ROWS, facts.train.rows)
    ample = rows / facts.classes > 4 * facts.feature_count and not facts.texts
    usable = {
        name: family.weight * (0.3 if family.title.lower() in avoid.lower() else 1.0)
        for name, family in families(facts.kind).items()
        if rows <= family.most_rows and name != other_than and (ample or not family.full_rank)
    }
    name = rng.choices(list(usable), list(usable.values()))[0]
    family = families(facts.kind)[name]
    return Model(family=name, settings={key: setting.draw(rng) for key, setting in family.settings.items()})


def draw_step(rng: Random, facts: TaskFacts) -> Step:
    """One derivation."""
    kinds: list[Derivation] = ["products", "ratios", "differences", "squares", "logs", "row_stats", "clusters"]
    if facts.has_categories:
        kinds.append("group_means")
    kind = rng.choice(kinds)
    size = Whole(2, 24).draw(rng) if kind == "clusters" else Whole(2, max(2, min(9, facts.numeric_count))).draw(rng)
    return Step(kind=kind, size=1 if kind == "row_stats" else size)


def draw_reduce(rng: Random, facts: TaskFacts) -> Reduce:
    """A projection that fits the number of columns."""
    widest = max(2, min(facts.numeric_count or facts.feature_count, facts.train.rows // 3 or 2))
    kind: Reduction = rng.choice(("pca", "kbest", "nystroem"))
    most = max(20, min(300, facts.train.rows // 3)) if kind == "nystroem" else widest
    return Reduce(kind=kind, size=Whole(20 if kind == "nystroem" else min(2, most), most).draw(rng))


def improve_recipe(rng: Random, facts: TaskFacts, parent: Recipe) -> Recipe:
    """The parent with exactly one gene changed, and not dearer than the task can afford unless the parent was."""
    moves = _moves(facts, parent)
    most = max(affordable_seconds(facts), estimated_seconds(parent, facts))
    while True:
        move = rng.choices([m.change for m in moves], [m.weight for m in moves])[0]
        child = move(rng)
        if len(changed_genes(parent, child)) == 1 and estimated_seconds(child, facts) <= most:
            return child


class Move(NamedTuple):
    """One way to change a recipe."""

    weight: float
    change: Callable[[Random], Recipe]


def _moves(facts: TaskFacts, parent: Recipe) -> list[Move]:
    """The ways to change one gene; each changes the program's text."""
    moves = [
        Move(2.0 if facts.numeric_count else 0.0, lambda rng: _change_steps(rng, facts, parent)),
        Move(2.0, lambda rng: _change_ensemble(rng, facts, parent)),
        Move(0.3, lambda rng: _copy(parent, validation=rng.choice(("holdout", "cv3", "cv5")))),
    ]
    if facts.kind == "regression":
        moves.append(Move(1.0, lambda rng: _copy(parent, target=rng.choice(_targets(facts)))))
    if facts.has_missing and facts.numeric_count:
        moves.append(Move(0.5, lambda rng: _copy(parent, fill=rng.choice(_FILLS))))
    share = 1 / len(parent.ensemble.branches)
    for index in range(len(parent.ensemble.branches)):
        moves += [Move(move.weight * share, move.change) for move in _branch_moves(facts, parent, index)]
    return moves


def _branch_moves(facts: TaskFacts, parent: Recipe, index: int) -> Iterator[Move]:
    branch = parent.ensemble.branches[index]
    settings = families(facts.kind)[branch.model.family].settings

    def nudge(rng: Random) -> Recipe:
        name = rng.choice(list(settings))
        value = settings[name].nudge(branch.model.settings[name], rng)
        model = Model(family=branch.model.family, settings={**branch.model.settings, name: value})
        return parent.with_branch(index, model=model)

    def replace(rng: Random) -> Recipe:
        return parent.with_branch(index, model=draw_model(rng, facts, other_than=branch.model.family))

    def reduce(rng: Random) -> Recipe:
        drop = branch.reduce.kind != "none" and rng.random() < 0.5
        return parent.with_branch(index, reduce=Reduce() if drop else draw_reduce(rng, facts))

    yield Move(4.0, nudge)
    yield Move(1.5, replace)
    yield Move(0.6, reduce)
    yield Move(0.6, lambda rng: parent.with_branch(index, bags=rng.choice((1, 3, 5, 8))))
    if facts.numeric_count:
        yield Move(1.2, lambda rng: parent.with_branch(index, scale=rng.choice(("none", *_scales(facts)))))
    if facts.has_categories:
        yield Move(1.0, lambda rng: parent.with_branch(index, encode=rng.choice(_ENCODINGS)))
    if facts.output == "probability" and families(facts.kind)[branch.model.family].has_probabilities:
        options = ("none", "sigmoid", "isotonic")
        yield Move(0.4, lambda rng: parent.with_branch(index, calibrate=rng.choice(options)))


def _change_steps(rng: Random, facts: TaskFacts, parent: Recipe) -> Recipe:
    """Adds, drops, resizes or replaces one derivation."""
    steps = list(parent.steps)
    if not steps or (len(steps) < MOST_STEPS and rng.random() < 0.5):
        steps.insert(rng.randrange(len(steps) + 1), draw_step(rng, facts))
        return _copy(parent, steps=_distinct(tuple(steps)))
    index = rng.randrange(len(steps))
    if rng.random() < 0.3:
        del steps[index]
    elif rng.random() < 0.6 and steps[index].kind != "row_stats":
        most = 24 if steps[index].kind == "clusters" else max(2, min(9, facts.numeric_count))
        size = Whole(1, most).nudge(steps[index].size, rng)
        steps[index] = steps[index].model_copy(update={"size": size})
    else:
        steps[index] = draw_step(rng, facts)
    return _copy(parent, steps=_distinct(tuple(steps)))


def _change_ensemble(rng: Random, facts: TaskFacts, parent: Recipe) -> Recipe:
    """Adds or drops a branch, reweights an average, or joins the branches in another way."""
    ensemble = parent.ensemble
    branches, weights, how = list(ensemble.branches), list(ensemble.weights), ensemble.how
    roll = rng.random()
    if how == "single" or (roll < 0.3 and len(branches) < MOST_BRANCHES):
        branches.append(draw_branch(rng, facts))
        how = rng.choices(("average", "stack"), (0.8, 0.2))[0] if how == "single" else how
        weights = [*(weights or [1.0] * (len(branches) - 1)), _WEIGHT.draw(rng)] if how == "average" else []
    elif roll < 0.5:
        index = rng.randrange(len(branches))
        del branches[index]
        weights = weights[:index] + weights[index + 1 :]
        if len(branches) == 1:
            how, weights = "single", []
    elif roll < 0.85 and how == "average":
        index = rng.randrange(len(branches))
        weights[index] = _WEIGHT.nudge(weights[index], rng)
    else:
        how = "stack" if how == "average" else "average"
        weights = [1.0] * len(branches) if how == "average" else []
    return _copy(parent, ensemble=Ensemble(how=how, branches=tuple(branches), weights=tuple(weights)))


def cross_recipes(rng: Random, facts: TaskFacts, first: Recipe, second: Recipe) -> tuple[Recipe, str]:
    """A child of both, and in words how they were joined."""
    if rng.random() < 0.5:
        child, how = _blend(first, second), "an average of both programs' models, on the features of both"
    else:
        child, how = _graft(first, second), "the features of the first program with the model of the second"
    return within_budget(child, facts), how


def _blend(first: Recipe, second: Recipe) -> Recipe:
    """The leading branches of both, averaged."""
    half = MOST_BRANCHES // 2
    branches = first.ensemble.branches[:half] + second.ensemble.branches[:half]
    ensemble = Ensemble(how="average", branches=branches, weights=(1.0,) * len(branches))
    return _copy(first, steps=_distinct(first.steps + second.steps)[:MOST_STEPS], ensemble=ensemble)


def _graft(first: Recipe, second: Recipe) -> Recipe:
    """The second's ensemble of models behind the first's leading feature steps."""
    lead = first.ensemble.branches[0]
    branches = [
        branch.model_copy(update={"scale": lead.scale, "encode": lead.encode, "reduce": lead.reduce})
        for branch in second.ensemble.branches
    ]
    return _copy(first, ensemble=second.ensemble.model_copy(update={"branches": tuple(branches)}), target=second.target)


def within_budget(recipe: Recipe, facts: TaskFacts) -> Recipe:
    """The recipe, made cheaper until the task can afford it."""
    while estimated_seconds(recipe, facts) > affordable_seconds(facts):
        smaller = cheaper(recipe, facts)
        if smaller == recipe:
            break
        recipe = smaller
    return recipe


def cheaper(recipe: Recipe, facts: TaskFacts) -> Recipe:
    """One step cheaper; the same recipe when nothing is left to save."""
    if recipe.validation != "holdout":
        return _copy(recipe, validation="holdout")
    if recipe.ensemble.how == "stack":
        weights = (1.0,) * len(recipe.ensemble.branches)
        return _copy(recipe, ensemble=recipe.ensemble.model_copy(update={"how": "average", "weights": weights}))
    dearest = max(range(len(recipe.ensemble.branches)), key=lambda i: estimated_seconds(_only(recipe, i), facts))
    branch = recipe.ensemble.branches[dearest]
    if branch.bags > 1:
        return recipe.with_branch(dearest, bags=1)
    for name in ("n_estimators", "max_iter"):
        value = branch.model.settings.get(name)
        if isinstance(value, int) and value > 30:
            model = Model(family=branch.model.family, settings={**branch.model.settings, name: max(30, value // 2)})
            return recipe.with_branch(dearest, model=model)
    if len(recipe.ensemble.branches) > 1:
        return _only(recipe, 0 if dearest else 1)
    if branch.calibrate != "none":
        return recipe.with_branch(0, calibrate="none")
    if recipe.steps:
        return _copy(recipe, steps=recipe.steps[:-1])
    if branch.scale in ("splines", "bins", "power"):
        return recipe.with_branch(0, scale="standard")
    if recipe.fill == "neighbours":
        return _copy(recipe, fill="median")
    return plain_recipe(facts, seed=recipe.seed)


def plain_recipe(facts: TaskFacts, *, seed: int = 0) -> Recipe:
    """The simplest program that is still honest: a regularised linear model on scaled columns."""
    if facts.kind == "classification":
        model = Model(family="logistic", settings={"C": 1.0, "class_weight": None})
    else:
        model = Model(family="ridge", settings={"alpha": 1.0})
    return Recipe(ensemble=Ensemble(branches=(Branch(scale="standard", model=model),)), seed=seed)


_FILLS: tuple[Fill, ...] = ("median", "mean", "most_frequent", "indicator", "neighbours")
_ENCODINGS: tuple[Encode, ...] = ("onehot", "ordinal", "target_mean")
_WEIGHT = Real(0.2, 5.0)


def _scales(facts: TaskFacts) -> tuple[Scale, ...]:
    narrow: tuple[Scale, ...] = ("splines", "bins") if facts.numeric_count <= MOST_EXPANDED else ()
    return ("standard", "standard", "robust", "minmax", "quantile", "power", *narrow)


def _targets(facts: TaskFacts) -> tuple[TargetTransform, ...]:
    if facts.kind == "classification":
        return ("none",)
    roots: tuple[TargetTransform, ...] = ("log1p", "sqrt") if facts.positive_target else ()
    return ("none", "standard", "quantile", *roots)


def _distinct(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """At most one step of a kind, the first."""
    return tuple({step.kind: step for step in reversed(steps)}[kind] for kind in dict.fromkeys(s.kind for s in steps))


def _only(recipe: Recipe, index: int) -> Recipe:
    return _copy(recipe, ensemble=Ensemble(branches=(recipe.ensemble.branches[index],)))


def _copy(recipe: Recipe, **changes: object) -> Recipe:
    return recipe.model_copy(update=changes)


def feature_limit(facts: TaskFacts) -> int:
    """The most components that a projection of this table surely has."""
    return max(1, math.floor(min(facts.numeric_count or facts.feature_count, facts.train.rows / 3)))
