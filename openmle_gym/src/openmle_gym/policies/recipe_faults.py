"""The slips that a few of the recipes policy's programs contain, and how a failure's text leads back to their mending."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from openmle_gym.policies.recipe_grammar import Recipe, Reduce
from openmle_gym.policies.recipe_moves import cheaper, feature_limit, plain_recipe
from openmle_gym.policies.recipe_prompt import TaskFacts

Slip = Callable[[str, Random], str]


def _misspell(word: str, rng: Random) -> str:
    """Two neighbouring, differing letters swapped; a letter doubled where none differ."""
    places = [i for i in range(len(word) - 1) if word[i] != word[i + 1]]
    if not places:
        return word + word[-1]
    i = rng.choice(places)
    return word[:i] + word[i + 1] + word[i] + word[i + 2 :]


def _misspelt_name(source: str, rng: Random) -> str:
    """Misspells the last use of a name in the program's last lines, after all that takes time."""
    places = list(re.finditer(r"(?<![\"\w])(X_test|new_features|submission|TARGETS?|score)(?!\.csv|\w)", source))
    last = {place[1]: place for place in places}
    place = last[rng.choice(sorted(last))]
    return source[: place.start()] + _misspell(place[1], rng) + source[place.end() :]


def _missing_import(source: str, rng: Random) -> str:
    line = rng.choice(re.findall(r"^from sklearn\.\S+ import .+$", source, re.MULTILINE))
    start, _, names = line.partition(" import ")
    kept = names.split(", ")
    del kept[rng.randrange(len(kept))]
    return source.replace(line + "\n", f"{start} import {', '.join(kept)}\n" if kept else "", 1)


def _wrong_column(source: str, rng: Random) -> str:
    constant = re.search(r'^TARGET = "(.{2,})"$', source, re.MULTILINE)
    if constant is None:
        return source
    return source[: constant.start(1)] + _misspell(constant[1], rng) + source[constant.end(1) :]


def _wrong_parameter(source: str, rng: Random) -> str:
    renamed = {"n_estimators=": "n_trees=", "max_iter=": "max_iters=", "C=": "c=", "random_state=SEED": "seed=SEED"}
    present = [name for name in renamed if re.search(rf"[(\s]{re.escape(name)}", source)]
    if not present:
        return source
    name = rng.choice(present)
    place = list(re.finditer(rf"(?<=[(\s]){re.escape(name)}", source))[-1]
    return source[: place.start()] + renamed[name] + source[place.end() :]


def _forgotten_id(source: str, _: Random) -> str:
    return re.sub(r"submission = (test|sample)\[ID\]\.copy\(\)", r"submission = pd.DataFrame(index=\1.index)", source)


def _wrong_file(source: str, _: Random) -> str:
    return source.replace('to_csv("submission.csv"', 'to_csv("predictions.csv"')


def _wrong_rows(source: str, _: Random) -> str:
    head, marker, tail = source.rpartition("submission[")
    return head + marker + tail.replace("X_test", "X_train").replace("new_features", "features")


SLIPS: tuple[Slip, ...] = (
    _misspelt_name,
    _missing_import,
    _wrong_column,
    _wrong_parameter,
    _forgotten_id,
    _wrong_file,
    _wrong_rows,
)


def with_slip(source: str, rng: Random) -> str:
    """The program with one typical slip that has a place in it; unchanged where none has."""
    slipped = (slip(source, rng) for slip in rng.sample(SLIPS, len(SLIPS)))
    return next((each for each in slipped if each != source), source)


def too_wide(recipe: Recipe, facts: TaskFacts) -> Recipe:
    """The recipe with a projection to more components than the table has columns or rows."""
    size = facts.train.rows + facts.feature_count
    return recipe.with_branch(0, reduce=Reduce(kind="pca", size=size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mend:
    """What a failure was put down to, and the recipe to write anew."""

    cause: str
    """A sentence for the plan."""
    recipe: Recipe


def mend(failure: str, recipe: Recipe, facts: TaskFacts) -> Mend:
    """Reads how a program failed and says what to do about it.

    A slip of the pen leaves the recipe as it is, to be written out anew without the slip; a failure of the idea
    changes the gene that is to blame; a failure that is not understood makes the recipe simpler.
    """
    if found := re.search(r"NameError: name '(\w+)' is not defined", failure):
        what = "imported" if re.match("[A-Z]+[a-z]", found[1]) else "defined"
        return Mend(cause=f"`{found[1]}` was never {what}; the rest stays as it was.", recipe=recipe)
    if re.search(r"outcome: timeout|\boom\b|MemoryError|out of memory", failure):
        return Mend(cause="It used too much time or memory, so I make it cheaper.", recipe=_much_cheaper(recipe, facts))
    if re.search(r"n_components\D*\d+ must be", failure):
        return Mend(
            cause="The projection asked for more components than there are; I lower their number.",
            recipe=_narrowed(recipe, facts),
        )
    if found := re.search(r"unexpected keyword argument '(\w+)'", failure):
        return Mend(cause=f"There is no parameter `{found[1]}`; I use the right name.", recipe=recipe)
    if found := re.search(r"KeyError: (.+)", failure):
        return Mend(cause=f"There is no column {found[1][:60]}; I use the name that the data has.", recipe=recipe)
    if "outcome: submission_missing" in failure:
        return Mend(cause="It never wrote `submission.csv`; I write the predictions there.", recipe=recipe)
    if re.search(r"Length of values|does not match length", failure):
        return Mend(cause="It predicted other rows than those of the test data; I predict these.", recipe=recipe)
    if re.search(r"outcome: scoring_failed", failure) and re.search(r"\bcolumns?\b", failure):
        return Mend(cause="A column was missing from the submission; I write them all.", recipe=recipe)
    return Mend(cause="I cannot tell the cause from the output, so I simplify.", recipe=simpler(recipe, facts))


def simpler(recipe: Recipe, facts: TaskFacts) -> Recipe:
    """The recipe's first model alone on plainly prepared columns; the plainest of all where it is that already."""
    first = recipe.ensemble.branches[0].model_copy(
        update={"scale": "standard", "reduce": Reduce(), "bags": 1, "calibrate": "none"}
    )
    ensemble = recipe.ensemble.model_copy(update={"how": "single", "branches": (first,), "weights": ()})
    plain = recipe.model_copy(update={"ensemble": ensemble, "steps": (), "fill": "median", "target": "none"})
    return plain if plain != recipe else plain_recipe(facts, seed=recipe.seed)


def _much_cheaper(recipe: Recipe, facts: TaskFacts) -> Recipe:
    for _ in range(3):
        recipe = cheaper(recipe, facts)
    return recipe


def _narrowed(recipe: Recipe, facts: TaskFacts) -> Recipe:
    for index, branch in enumerate(recipe.ensemble.branches):
        if branch.reduce.kind == "pca":
            size = min(feature_limit(facts), max(1, branch.reduce.size // 2))
            recipe = recipe.with_branch(index, reduce=Reduce(kind="pca", size=size))
    return recipe
