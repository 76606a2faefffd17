"""Facts that follow from cards: method family, gain, current best, what operators did. Pure, and never stored."""

import ast
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from openmle_gym.experience import ExperienceCard
from openmle_gym.jobs import Outcome
from openmle_gym.operators import Operator
from openmle_gym.parsing import nodes_of, parse_source

_FAMILIES: Mapping[str, tuple[str, ...]] = {
    "boosting": (
        "GradientBoosting",
        "HistGradientBoosting",
        "AdaBoost",
        "XGB",
        "LGBM",
        "CatBoost",
        "xgboost",
        "lightgbm",
        "catboost",
    ),
    "forest": ("RandomForest", "ExtraTrees"),
    "tree": ("DecisionTree",),
    "linear": (
        "LogisticRegression",
        "LinearRegression",
        "Ridge",
        "Lasso",
        "ElasticNet",
        "SGD",
        "BayesianRidge",
        "HuberRegressor",
        "LinearDiscriminantAnalysis",
        "TweedieRegressor",
        "PoissonRegressor",
        "GammaRegressor",
    ),
    "kernel": ("SVC", "SVR", "GaussianProcess", "KernelRidge", "Nystroem", "QuadraticDiscriminantAnalysis"),
    "neighbours": ("KNeighbors", "RadiusNeighbors"),
    "bayes": ("GaussianNB", "MultinomialNB", "BernoulliNB", "ComplementNB"),
    "neural": ("MLP", "torch", "tensorflow", "keras", "jax"),
}
"""Method family by the names of classes and modules that stand for it; the end of a name is free (Classifier, CV)."""


@cache
def method_family(source: str) -> str:
    """The families of model that a program builds, joined with `+`: `forest`, `boosting+linear`, `unknown`.

    Read from the names that the program *calls* and the modules that it imports, so a comment or an unused import of a
    class does not count.
    """
    tree = parse_source(source).tree
    if tree is None:
        return "unknown"
    names = set()
    for node in nodes_of(tree):
        if isinstance(node, ast.Call):
            names.add(node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
        elif isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    found = [family for family, stems in _FAMILIES.items() if any(name.startswith(stems) for name in names)]
    return "+".join(sorted(found)) or "unknown"


@cache
def normalised_source(source: str) -> str:
    """Equal for programs that differ in comments, docstrings and layout alone; the text itself when it does not parse."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return source
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.body[1:]:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                del node.body[0]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def ranked(cards: Sequence[ExperienceCard]) -> list[ExperienceCard]:
    """The cards with a validation score, best first, the earlier attempt first among equals."""
    valid = [card for card in cards if card.validation is not None]
    return sorted(valid, key=lambda card: (-_utility(card), card.attempt))


def best_card(cards: Sequence[ExperienceCard]) -> ExperienceCard | None:
    """The card with the best validation score, the earliest attempt among equals; None when none is valid."""
    valid = (card for card in cards if card.validation is not None)
    return max(valid, key=lambda card: (_utility(card), -card.attempt), default=None)


def _utility(card: ExperienceCard) -> float:
    assert card.validation is not None
    return card.validation.utility


def gain(card: ExperienceCard, by_attempt: Mapping[int, ExperienceCard]) -> float | None:
    """By how much a card's utility exceeds that of its best scored parent; None without such a parent or a score."""
    parents = [by_attempt[number] for number in card.parents if number in by_attempt]
    scored = [parent.validation.utility for parent in parents if parent.validation is not None]
    if card.validation is None or not scored:
        return None
    return card.validation.utility - max(scored)


def new_bests(cards: Sequence[ExperienceCard]) -> list[ExperienceCard]:
    """The cards that each were the best valid one when they were committed, in order of commit."""
    bests: list[ExperienceCard] = []
    for card in cards:
        if card.validation is not None and (not bests or _utility(card) > _utility(bests[-1])):
            bests.append(card)
    return bests


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyFacts:
    """What the programs of one method family did so far."""

    attempts: int
    valid: int
    best: ExperienceCard | None
    """Its best valid card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFacts:
    """What an operator did over a run."""

    attempts: int
    valid: int
    new_bests: int
    tokens: int
    sandbox_seconds: float


def by_operator(cards: Sequence[ExperienceCard]) -> dict[Operator, OperatorFacts]:
    """The operators' productivity; every operator is listed, used or not."""
    bests = Counter(card.operator for card in new_bests(cards))
    return {operator: _operator_facts(operator, cards, bests[operator]) for operator in Operator}


def _operator_facts(operator: Operator, cards: Sequence[ExperienceCard], bests: int) -> OperatorFacts:
    own = [card for card in cards if card.operator is operator]
    return OperatorFacts(
        attempts=len(own),
        valid=sum(card.valid for card in own),
        new_bests=bests,
        tokens=sum(card.usage.prompt_tokens + card.usage.completion_tokens for card in own),
        sandbox_seconds=sum(card.sandbox_seconds for card in own),
    )


def by_outcome(cards: Sequence[ExperienceCard]) -> dict[Outcome, int]:
    """How often each outcome was reached; every outcome is listed."""
    counts = Counter(card.outcome for card in cards)
    return {outcome: counts[outcome] for outcome in Outcome}
