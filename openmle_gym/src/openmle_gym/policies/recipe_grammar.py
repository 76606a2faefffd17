"""The recipe: the genes that a program is rendered from and carries with it, and what they cost."""

import re
from typing import Literal

from pydantic import Field, ValidationError

from openmle_gym.contracts import Contract
from openmle_gym.policies.recipe_costs import Load
from openmle_gym.policies.recipe_families import families
from openmle_gym.policies.recipe_prompt import TaskFacts
from openmle_gym.policies.recipe_settings import Value

Fill = Literal["median", "mean", "most_frequent", "indicator", "neighbours"]
Scale = Literal["none", "standard", "robust", "minmax", "quantile", "power", "splines", "bins"]
Encode = Literal["onehot", "ordinal", "target_mean"]
Derivation = Literal["products", "ratios", "differences", "squares", "logs", "row_stats", "clusters", "group_means"]
TargetTransform = Literal["none", "standard", "log1p", "sqrt", "quantile"]
Reduction = Literal["none", "pca", "kbest", "nystroem"]
Validation = Literal["holdout", "cv3", "cv5"]
How = Literal["single", "average", "stack"]

MARKER = "# recipe: "
SAMPLED_ROWS = 20_000
"""Programs for larger tables train on a sample of so many rows."""
TEXT_COLUMNS = 100
"""What a column of free text becomes."""
MOST_BRANCHES = 4
MOST_STEPS = 3
MOST_EXPANDED = 40
"""Splines and bins multiply columns; wider tables than this get neither."""


class Step(Contract):
    """One step that adds columns derived from the strongest numeric ones."""

    kind: Derivation
    size: int = Field(ge=1, le=40)
    """How many of the strongest columns it uses; for clusters, how many centres."""


class Reduce(Contract):
    """What happens between preprocessing and the model."""

    kind: Reduction = "none"
    size: int = Field(default=0, ge=0)


class Model(Contract):
    """A family with its settings."""

    family: str
    settings: dict[str, Value]


class Branch(Contract):
    """One pipeline from columns to predictions."""

    scale: Scale = "none"
    encode: Encode = "onehot"
    reduce: Reduce = Reduce()
    model: Model
    bags: int = Field(default=1, ge=1, le=10)
    """The model is averaged over so many bootstrap samples."""
    calibrate: Literal["none", "sigmoid", "isotonic"] = "none"


class Ensemble(Contract):
    """One to four branches and how their predictions are joined."""

    how: How = "single"
    branches: tuple[Branch, ...] = Field(min_length=1, max_length=MOST_BRANCHES)
    weights: tuple[float, ...] = ()
    """One for each branch of an average; empty otherwise."""


class Recipe(Contract):
    """Everything that tells one program from another."""

    fill: Fill = "median"
    steps: tuple[Step, ...] = Field(default=(), max_length=MOST_STEPS)
    target: TargetTransform = "none"
    validation: Validation = "holdout"
    ensemble: Ensemble
    style: int = Field(default=0, ge=0, le=1)
    """Which of two vocabularies names the program's variables."""
    seed: int = 0

    def with_branch(self, index: int, **changes: object) -> "Recipe":
        """The recipe with fields of one branch replaced."""
        branches = list(self.ensemble.branches)
        branches[index] = branches[index].model_copy(update=changes)
        return self.model_copy(update={"ensemble": self.ensemble.model_copy(update={"branches": tuple(branches)})})


def parse_recipe(source: str, facts: TaskFacts) -> Recipe | None:
    """The recipe that a program carries in its comment line; None when it carries none that fits the task."""
    line = re.search(rf"^{re.escape(MARKER)}(.*)$", source, re.MULTILINE)
    if line is None:
        return None
    try:
        recipe = Recipe.model_validate_json(line[1])
    except ValidationError:
        return None
    table = families(facts.kind)
    fits = all(
        branch.model.family in table and branch.model.settings.keys() == table[branch.model.family].settings.keys()
        for branch in recipe.ensemble.branches
    )
    return recipe if fits else None


def changed_genes(old: Recipe, new: Recipe) -> tuple[str, ...]:
    """The names of the genes in which two recipes differ.

    A branch added, dropped or weighted otherwise is one gene (`ensemble`); so is a model of another family with all
    its settings.
    """
    names = [name for name in ("fill", "steps", "target", "validation") if getattr(old, name) != getattr(new, name)]
    ours, theirs = old.ensemble, new.ensemble
    if (ours.how, ours.weights, len(ours.branches)) != (theirs.how, theirs.weights, len(theirs.branches)):
        names.append("ensemble")
    shared = zip(ours.branches, theirs.branches, strict=False)
    if len(ours.branches) > len(theirs.branches):
        kept = [branch for branch in ours.branches if branch in theirs.branches]
        shared = zip(kept, theirs.branches, strict=False)
    for index, (before, after) in enumerate(shared):
        prefix = f"branch {index + 1} "
        fields = ("scale", "encode", "reduce", "bags", "calibrate")
        names += [prefix + name for name in fields if getattr(before, name) != getattr(after, name)]
        if before.model.family != after.model.family:
            names.append(prefix + "model")
        else:
            settings = before.model.settings
            names += [prefix + name for name, value in settings.items() if after.model.settings.get(name) != value]
    return tuple(names)


def estimated_seconds(recipe: Recipe, facts: TaskFacts) -> float:
    """About how long the program takes beyond its imports, on one core."""
    rows = min(SAMPLED_ROWS, facts.train.rows or 1_000)
    columns = facts.feature_count + sum(_added_columns(step) for step in recipe.steps)
    columns += TEXT_COLUMNS * len(facts.texts)
    table = families(facts.kind)
    total = 0.05
    for branch in recipe.ensemble.branches:
        width = columns * {"splines": 6, "bins": 6}.get(branch.scale, 1)
        if branch.reduce.kind != "none":
            width = min(width, branch.reduce.size)
        family = table[branch.model.family]
        one = family.cost(Load(rows=rows, columns=width, classes=facts.classes), branch.model.settings) * branch.bags
        one += 2e-7 * rows * columns * {"power": 60, "quantile": 5, "splines": 10}.get(branch.scale, 2)
        total += one * (4 if branch.calibrate != "none" or needs_calibration(branch, recipe, facts) else 1)
    folds = {"holdout": 1, "cv3": 3, "cv5": 5}[recipe.validation]
    repeats = 4 if recipe.ensemble.how == "stack" else 1
    filling = 1e-7 * rows**2 if recipe.fill == "neighbours" and facts.has_missing else 0.0
    return (total * repeats + filling) * (1 + folds) * max(1, len(facts.label_columns))


def needs_calibration(branch: Branch, recipe: Recipe, facts: TaskFacts) -> bool:
    """Whether the model gives no probabilities of its own where the program needs them."""
    wanted = facts.output == "probability" or recipe.ensemble.how != "single"
    return facts.kind == "classification" and wanted and not families(facts.kind)[branch.model.family].has_probabilities


def _added_columns(step: Step) -> int:
    pairs = step.size * (step.size - 1) // 2
    return {"products": pairs, "differences": pairs, "ratios": 2 * pairs, "row_stats": 4}.get(step.kind, step.size)
