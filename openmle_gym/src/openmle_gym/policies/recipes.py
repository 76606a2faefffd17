"""The recipes policy: a baseline without a language model, and the embedded default.

It answers the four operators' prompts with honest scikit-learn programs drawn from a grammar of preprocessing steps,
model families and ensembles. It reads nothing but the chat messages, knows nothing but what they say, learns nothing,
and answers the same messages with the same seed in the same words on every machine. Use it to try the whole stack out,
to compare a model with, and to make programs for a first corpus; it is no substitute for a model.

About one Draft or Improve in sixteen contains a typical slip, so that Debug has something to mend. Which ones do follows
from the seeds alone, not from a prompt's words: an attempt of a search slips, or does not, on every task and machine.
"""

import hashlib
import json
import math
import time
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from openmle_gym.chat import Completion, Message, Usage
from openmle_gym.operators import Operator
from openmle_gym.policies.recipe_code import describe, render_program
from openmle_gym.policies.recipe_faults import mend, simpler, too_wide, with_slip
from openmle_gym.policies.recipe_general import can_be_general, render_general
from openmle_gym.policies.recipe_grammar import Recipe, changed_genes, parse_recipe
from openmle_gym.policies.recipe_moves import cross_recipes, draw_recipe, improve_recipe
from openmle_gym.policies.recipe_prompt import (
    Parent,
    ReadPrompt,
    TaskFacts,
    is_summary_prompt,
    note_on,
    read_prompt,
)

SLIP_RATE = 0.06
MODEL_NAME = "recipes"


class _Answer(NamedTuple):
    plan: str
    program: str


class RecipePolicy:
    """A `ChatModel` that draws programs from a grammar."""

    def __init__(self, *, seed: int = 0, slip_rate: float = SLIP_RATE, general: bool = False) -> None:
        """
        Args:
            seed: Another seed is another policy.
            slip_rate: The share of Drafts and Improves that get a slip.
            general: Programs read the names of columns from the files, and look alike for all tasks; see `recipe_general`.
        """
        self.seed = seed
        self.slip_rate = slip_rate
        self.general = general

    async def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> Completion:
        """Answers an operator's prompt, or a request for a note; a pure function of the policy's seed, the seed and the messages.

        Raises:
            ValueError: The messages are no operator's prompt.
        """
        start = time.perf_counter()
        rng = _random_of([self.seed, seed, [[message.role, message.content] for message in messages]])
        if is_summary_prompt(messages):
            text = note_on(messages)
        else:
            prompt = read_prompt(messages)
            answer = self._answer(prompt, rng, slips=self._slips(seed, rng))
            text = f"{answer.plan}\n\n```python\n{answer.program}```\n"
        prompt_tokens = sum(math.ceil(len(message.content) / 4) for message in messages)
        return Completion(
            text=text,
            model=MODEL_NAME,
            usage=Usage(prompt_tokens=prompt_tokens, completion_tokens=math.ceil(len(text) / 4), estimated=True),
            seconds=time.perf_counter() - start,
        )

    def _slips(self, seed: int | None, rng: Random) -> bool:
        """Whether a Draft or Improve is to get a slip; left to `rng` where a call has no seed."""
        if seed is not None:
            rng = _random_of([self.seed, seed])
        return rng.random() < self.slip_rate

    def _answer(self, prompt: ReadPrompt, rng: Random, *, slips: bool) -> _Answer:
        facts = prompt.facts
        recipes = [parse_recipe(parent.source, facts) for parent in prompt.parents]
        known = [recipe for recipe in recipes if recipe is not None]
        if prompt.operator is Operator.DRAFT:
            return self._draft(facts, rng, slips=slips, avoid=prompt.earlier)
        if not known:
            fresh = self._draft(facts, rng, slips=slips)
            return _Answer(f"I cannot take this program apart, so I start afresh. {fresh.plan}", fresh.program)
        if prompt.operator is Operator.IMPROVE:
            return self._improve(facts, rng, known[0], slips=slips)
        if prompt.operator is Operator.DEBUG:
            return self._debug(facts, known[0], prompt.parents[0])
        return self._crossover(facts, rng, known)

    def _draft(self, facts: TaskFacts, rng: Random, *, slips: bool, avoid: str = "") -> _Answer:
        recipe = draw_recipe(rng, facts, avoid=avoid)
        plan = f"{describe(recipe, facts)}. {_validation_words(recipe)}"
        if not slips:
            return _Answer(plan, self._render(recipe, facts))
        if rng.random() < 0.15 and facts.numeric_count:
            recipe = too_wide(recipe, facts)
            return _Answer(f"{describe(recipe, facts)}. {_validation_words(recipe)}", self._render(recipe, facts))
        return _Answer(plan, with_slip(self._render(recipe, facts), rng))

    def _improve(self, facts: TaskFacts, rng: Random, parent: Recipe, *, slips: bool) -> _Answer:
        child = improve_recipe(rng, facts, parent)
        gene = changed_genes(parent, child)[0]
        lead = rng.choice(("I change one thing", "One change", "I keep all but one thing"))
        plan = f"{lead}, the {gene.replace('_', ' ')}: {_value(parent, gene)} becomes {_value(child, gene)}."
        source = self._render(child, facts)
        return _Answer(plan, with_slip(source, rng) if slips else source)

    def _debug(self, facts: TaskFacts, recipe: Recipe, parent: Parent) -> _Answer:
        mended = mend(parent.failure, recipe, facts)
        source = self._render(mended.recipe, facts)
        if source == parent.source:
            mended = mend("", recipe, facts)
            source = self._render(simpler(recipe, facts), facts)
        return _Answer(mended.cause, source)

    def _crossover(self, facts: TaskFacts, rng: Random, known: list[Recipe]) -> _Answer:
        """Joins two recipes; a foreign program's place is taken by a fresh draft."""
        apology = "" if len(known) == 2 else "I can take only one of the programs apart and join it with a new idea. "
        first, second = known if len(known) == 2 else (known[0], draw_recipe(rng, facts))
        child, how = cross_recipes(rng, facts, first, second)
        if not changed_genes(first, child) or not changed_genes(second, child):
            child = improve_recipe(rng, facts, child)
            how += ", which is one of the two, so with one change"
        return _Answer(f"{apology}I join them: {how}. {describe(child, facts)}.", self._render(child, facts))

    def _render(self, recipe: Recipe, facts: TaskFacts) -> str:
        if self.general and can_be_general(facts):
            return render_general(recipe, facts)
        return render_program(recipe, facts)


def _random_of(key: list[Any]) -> Random:
    return Random(int.from_bytes(hashlib.sha256(json.dumps(key).encode()).digest()))


def _validation_words(recipe: Recipe) -> str:
    if recipe.validation == "holdout":
        return "A quarter of the training rows is held out to estimate the score."
    return f"{recipe.validation.removeprefix('cv')}-fold cross-validation estimates the score."


def _value(recipe: Recipe, gene: str) -> str:
    """The gene's value in words."""
    ensemble = recipe.ensemble
    if gene == "ensemble":
        weights = f" weighted {', '.join(f'{weight:g}' for weight in ensemble.weights)}" if ensemble.weights else ""
        return f"{ensemble.how} of {', '.join(branch.model.family for branch in ensemble.branches)}{weights}"
    if gene == "steps":
        return ", ".join(f"{step.kind} ({step.size})" for step in recipe.steps) or "none"
    if not gene.startswith("branch "):
        return str(getattr(recipe, gene))
    _, index, name = gene.split(" ", 2)
    branch = ensemble.branches[int(index) - 1]
    if name == "model":
        return branch.model.family
    if name == "reduce":
        return f"{branch.reduce.kind} ({branch.reduce.size})" if branch.reduce.size else "none"
    return str(branch.model.settings[name] if name in branch.model.settings else getattr(branch, name))
