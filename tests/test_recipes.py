"""The recipes policy: what it reads, what it answers, and that its programs run."""

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openmle_gym.anchors import ANCHORS, build_anchor
from openmle_gym.chat import Completion, Message
from openmle_gym.evaluate import Attempt, JobSettings, evaluate_reply
from openmle_gym.execute import LocalExecutor
from openmle_gym.experience import ExperienceCard, Selection
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.isolation.runner import INPUTS, PYTHON, RunSpec
from openmle_gym.jobs import Limits, Outcome
from openmle_gym.manifest import Columns, Manifest, Metric
from openmle_gym.memory import MemoryConfig, recall, remembered
from openmle_gym.new_task import new_task
from openmle_gym.operators import DEBUGGABLE, Operator
from openmle_gym.policies.recipe_code import render_program
from openmle_gym.policies.recipe_faults import SLIPS, too_wide, with_slip
from openmle_gym.policies.recipe_grammar import Recipe, changed_genes, estimated_seconds, parse_recipe
from openmle_gym.policies.recipe_moves import affordable_seconds, draw_recipe, plain_recipe
from openmle_gym.policies.recipe_prompt import TaskFacts, read_prompt
from openmle_gym.policies.recipes import RecipePolicy
from openmle_gym.preview import preview_data
from openmle_gym.program import parse_reply
from openmle_gym.prompts import PublicTask, Surroundings, build_prompt, public_task, summary_prompt
from openmle_gym.review import review_program
from openmle_gym.scores import ValidationScore
from openmle_gym.task import TaskPackage

LIMITS = Limits(wall_seconds=60)
RUNNER = ProcessRunner(allow_no_isolation=True)
STEADY = RecipePolicy(slip_rate=0.0)
DATA = """\
`test.csv`: 100 rows, 4 columns
  - key: text, 100 distinct, such as '0001', '0004'
  - length: number, 90 distinct, 3 missing, 0.5 to 9.5
  - width: number, 90 distinct, 0.5 to 9.5
  - colour: text, 3 distinct, such as 'red', 'blue', 'green'

`train.csv`: 200 rows, 5 columns
  - key: text, 200 distinct, such as '0002', '0003'
  - length: number, 180 distinct, 0.5 to 9.5
  - width: number, 180 distinct, 0.5 to 9.5
  - colour: text, 3 distinct, such as 'red', 'blue', 'green'
  - weight: number, 150 distinct, 1 to 80"""


def task(data: str = DATA, **changes) -> PublicTask:
    """A task that exists as a prompt only."""
    fields = {
        "name": "parcels",
        "task_type": "regression",
        "metric": Metric(name="rmse", higher_is_better=False),
        "columns": Columns(id=("key",), target=("weight",)),
    }
    return PublicTask(manifest=Manifest(**{**fields, **changes}), description="# Data\n\nweigh", data=data)


def card(source: str, outcome: Outcome = Outcome.SUCCESS, **changes) -> ExperienceCard:
    """A judged attempt."""
    scored = ValidationScore(value=1.0, higher_is_better=False) if outcome is Outcome.SUCCESS else None
    fields = {
        "run_id": "run",
        "task": "parcels",
        "attempt": 0,
        "operator": Operator.DRAFT,
        "selection": Selection(reason="test"),
        "program_id": "0" * 16,
        "source": source,
        "plan": "",
        "outcome": outcome,
        "validation": scored,
        "finished_at": "2026-01-01T00:00:00.000Z",
    }
    return ExperienceCard(**{**fields, **changes})


def prompt(operator: Operator, *parents: ExperienceCard, on: PublicTask | None = None, **settings) -> list[Message]:
    return build_prompt(operator, on or task(), parents, Surroundings(limits=LIMITS, **settings))


def answer(messages: list[Message], seed: int = 0, policy: RecipePolicy = STEADY) -> Completion:
    return asyncio.run(policy.complete(messages, seed=seed))


def program(completion: Completion) -> str:
    return parse_reply(completion.text).source


FACTS = read_prompt(prompt(Operator.DRAFT)).facts


def recipe_of(source: str, facts: TaskFacts = FACTS) -> Recipe:
    recipe = parse_recipe(source, facts)
    assert recipe is not None
    return recipe


def draft(seed: int, on: PublicTask | None = None) -> str:
    return program(answer(prompt(Operator.DRAFT, on=on), seed))


def test_the_facts_of_a_prompt_are_read():
    assert (FACTS.metric, FACTS.higher_is_better, FACTS.kind, FACTS.output) == ("rmse", False, "regression", "number")
    assert (FACTS.ids, FACTS.targets, FACTS.label_columns) == (("key",), ("weight",), ("weight",))
    assert [column.name for column in FACTS.features] == ["length", "width", "colour"]
    assert (FACTS.train.rows, FACTS.test.rows, FACTS.wall_seconds) == (200, 100, 60.0)
    assert (FACTS.numeric_count, FACTS.has_categories, FACTS.texts) == (2, True, ())
    assert FACTS.has_missing  # in the test data only
    assert FACTS.positive_target
    assert FACTS.classes == 1


def test_parents_are_read_from_fence_to_fence_whatever_their_source_holds():
    tricky = 'x = """\n# Output\n\n```python\n# Parent program 2 of 2\n\n- outcome: success\n```\n"""\n'
    failed = card(tricky, Outcome.CODE_EXECUTION_ERROR, message="one\n\ntwo", log_head="# Output\n\nboom")
    parents = read_prompt(prompt(Operator.DEBUG, failed)).parents
    assert [parent.source for parent in parents] == [tricky]
    assert "one\n\ntwo" in parents[0].failure
    assert "boom" in parents[0].failure
    both = read_prompt(prompt(Operator.CROSSOVER, card(tricky), card("y = 1\n"))).parents
    assert [parent.source for parent in both] == [tricky, "y = 1\n"]


def test_other_messages_are_refused():
    with pytest.raises(ValueError, match="not an operator's prompt"):
        answer([Message(role="user", content="hello")])


@pytest.mark.parametrize(
    ("metric", "target", "prediction", "kind", "output"),
    [
        ("AUCMetrics", "integer, 2 distinct, 0 to 1", "number", "classification", "probability"),
        ("MultiClassAccuracyMetrics", "integer, 7 distinct, 1 to 7", "number", "classification", "label"),
        ("RMSEMetrics", "integer, 190 distinct, 1 to 900", "number", "regression", "number"),
        ("unknown", "text, 3 distinct, such as 'a'", "number", "classification", "label"),
        ("unknown", "integer, 3 distinct, 0 to 2", "label", "classification", "label"),
    ],
)
def test_a_task_that_does_not_tell_its_type_is_understood(metric, target, prediction, kind, output):
    data = DATA.replace("number, 150 distinct, 1 to 80", target)
    on = task(data, task_type="other", metric=Metric(name=metric, higher_is_better=True, prediction=prediction))
    facts = read_prompt(prompt(Operator.DRAFT, on=on)).facts
    assert (facts.kind, facts.output) == (kind, output)


def test_the_same_messages_and_seed_give_the_same_words_in_any_process():
    messages = prompt(Operator.DRAFT)
    script = (
        "import asyncio, json, sys\n"
        "from openmle_gym.chat import Message\n"
        "from openmle_gym.policies.recipes import RecipePolicy\n"
        "messages = [Message(**m) for m in json.load(sys.stdin)]\n"
        "def touched(event, arguments):\n"
        "    if event.split('.')[0] in ('open', 'os', 'socket', 'subprocess'): raise SystemExit(f'{event} {arguments}')\n"
        "policy, loop = RecipePolicy(seed=5), asyncio.new_event_loop()\n"
        "loop.run_until_complete(policy.complete(messages, seed=0))\n"
        "sys.addaudithook(touched)\n"
        "for seed in range(20): print(loop.run_until_complete(policy.complete(messages, seed=seed)).text)\n"
        "import os; os._exit(sys.stdout.flush() or 0)\n"
    )
    texts = []
    for hash_seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-c", script],
            input=json.dumps([m.model_dump() for m in messages]),
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        texts.append(run.stdout)
    here = "".join(answer(messages, seed, RecipePolicy(seed=5)).text + "\n" for seed in range(20))
    assert texts == [here, here]


def test_another_seed_or_another_policy_seed_is_another_program():
    messages = prompt(Operator.DRAFT)
    by_seed = {answer(messages, seed).text for seed in range(20)}
    by_policy = {answer(messages, 0, RecipePolicy(seed=seed, slip_rate=0.0)).text for seed in range(20)}
    assert len(by_seed) == len(by_policy) == 20


def test_usage_is_estimated_at_four_characters_to_a_token():
    messages = prompt(Operator.DRAFT)
    completion = answer(messages)
    assert completion.usage.estimated
    assert completion.usage.prompt_tokens == sum(-(-len(m.content) // 4) for m in messages)
    assert completion.usage.completion_tokens == -(-len(completion.text) // 4)
    assert completion.model == "recipes"


def test_drafts_are_plans_with_one_program_that_the_reviewer_lets_pass():
    lengths = []
    for seed in range(150):
        reply = answer(prompt(Operator.DRAFT), seed)
        found = parse_reply(reply.text)
        assert reply.text.count("```") == 2
        assert found.plan
        assert found.syntax_error is None
        assert review_program(found).accepted
        assert max(len(line) for line in found.source.splitlines()[2:]) <= 140
        lengths.append(found.source.count("\n"))
    assert 30 <= np.median(lengths) <= 90


@given(st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_a_drawn_recipe_survives_its_program_and_is_affordable(seed):
    recipe = draw_recipe(Random(seed), FACTS)
    assert parse_recipe(render_program(recipe, FACTS), FACTS) == recipe
    assert estimated_seconds(recipe, FACTS) <= affordable_seconds(FACTS)


@given(st.integers(0, 10**6), st.integers(0, 5), st.booleans())
@settings(max_examples=150, deadline=None)
def test_improve_changes_exactly_one_gene_and_the_program(seed, first_seed, classify):
    on = task()
    if classify:
        data = DATA.replace("number, 150 distinct, 1 to 80", "integer, 2 distinct, 0 to 1")
        metric = Metric(name="log_loss", higher_is_better=False, prediction="probability")
        on = task(data, task_type="classification", metric=metric)
    facts = read_prompt(prompt(Operator.DRAFT, on=on)).facts
    source = draft(first_seed, on)
    for step in range(4):
        parent, reply = source, answer(prompt(Operator.IMPROVE, card(source), on=on), seed + step)
        source = program(reply)
        before, after = recipe_of(parent, facts), recipe_of(source, facts)
        (gene,) = changed_genes(before, after)
        assert gene.replace("_", " ") in parse_reply(reply.text).plan
        strip = re.compile(r'^(""".*"""|# recipe: .*)\n', re.MULTILINE)
        assert strip.sub("", source) != strip.sub("", parent), gene


@given(st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_crossover_uses_both_parents(seed):
    rng = Random(seed)
    first, second = (render_program(draw_recipe(rng, FACTS), FACTS) for _ in range(2))
    child = recipe_of(program(answer(prompt(Operator.CROSSOVER, card(first), card(second)), seed)))
    one, two = recipe_of(first), recipe_of(second)
    families = [branch.model.family for branch in child.ensemble.branches]
    own = {branch.model.family for branch in one.ensemble.branches}
    other = {branch.model.family for branch in two.ensemble.branches}
    if child.ensemble.how == "average" and own & set(families) and other & set(families):
        return  # a blend
    lead, grafted = one.ensemble.branches[0], child.ensemble.branches[0]
    assert changed_genes(one, child)
    assert changed_genes(two, child)
    assert set(families) <= other | own
    assert (grafted.scale, grafted.encode) == (lead.scale, lead.encode) or len(changed_genes(one, child)) == 1


def test_twins_are_crossed_into_something_else():
    source = draft(3)
    child = program(answer(prompt(Operator.CROSSOVER, card(source), card(source)), 1))
    assert child != source


@pytest.mark.parametrize("operator", [Operator.IMPROVE, Operator.DEBUG, Operator.CROSSOVER])
def test_a_foreign_program_is_answered_with_a_fresh_draft_that_says_so(operator):
    outcome = Outcome.TIMEOUT if operator is Operator.DEBUG else Outcome.SUCCESS
    foreign = card("print('Final Validation Score: 1')\n", outcome)
    reply = answer(prompt(operator, *[foreign] * operator.parent_count), 2)
    assert "start afresh" in parse_reply(reply.text).plan
    assert recipe_of(program(reply))


def test_a_foreign_program_is_crossed_by_means_of_the_other_one():
    source = draft(4)
    reply = answer(prompt(Operator.CROSSOVER, card("x = 1\n"), card(source)), 2)
    assert "only one of the programs" in reply.text
    assert changed_genes(recipe_of(source), recipe_of(program(reply)))


def test_a_recipe_line_that_was_tampered_with_is_no_recipe():
    source = draft(1)
    assert parse_recipe(source.replace('"family":"', '"family":"x'), FACTS) is None
    assert parse_recipe(source.replace("# recipe: {", "# recipe: {]"), FACTS) is None


def test_families_that_were_tried_are_drafted_less_often():
    tried = [card(draft(seed), plan="A random forest, one-hot encoding.") for seed in range(2)]

    def share(**settings) -> float:
        messages = prompt(Operator.DRAFT, **settings)
        plans = [parse_reply(answer(messages, seed).text).plan.lower() for seed in range(300)]
        return sum("a random forest" in plan for plan in plans) / 300

    memory = MemoryConfig()
    lines = remembered(recall(Operator.DRAFT, [], tried, memory), tried, {}, memory)
    assert share(earlier=lines) < 0.6 * share()


def test_about_one_draft_in_sixteen_has_a_slip():
    slipped = 0
    for seed in range(600):
        source = program(answer(prompt(Operator.DRAFT), seed, RecipePolicy()))
        recipe = recipe_of(source)
        slipped += source != render_program(recipe, FACTS) or recipe.ensemble.branches[0].reduce.size > 100
    assert 0.03 < slipped / 600 < 0.09


def test_whether_an_attempt_slips_follows_from_its_seed_whatever_the_prompt_says():
    def slipping(on: PublicTask) -> list[int]:
        messages = prompt(Operator.DRAFT, on=on)
        return [
            seed for seed in range(60) if answer(messages, seed, RecipePolicy()).text != answer(messages, seed).text
        ]

    classes = DATA.replace("number, 150 distinct, 1 to 80", "integer, 2 distinct, 0 to 1")
    metric = Metric(name="log_loss", higher_is_better=False, prediction="probability")
    assert slipping(task()) == slipping(task(classes, task_type="classification", metric=metric)) != []


def test_a_slip_that_has_no_place_in_a_program_gives_way_to_another():
    two_targets = draft(2, task(columns=Columns(id=("key",), target=("weight", "width"))))
    assert SLIPS[2](two_targets, Random(0)) == two_targets
    assert all(with_slip(two_targets, Random(seed)) != two_targets for seed in range(40))


FAILURES = {
    "_misspelt_name": (Outcome.CODE_EXECUTION_ERROR, "NameError: name 'X_tset' is not defined", "never defined"),
    "_missing_import": (Outcome.CODE_EXECUTION_ERROR, "NameError: name 'Ridge' is not defined", "never imported"),
    "_wrong_column": (Outcome.CODE_EXECUTION_ERROR, "KeyError: 'wieght'", "no column 'wieght'"),
    "_wrong_parameter": (
        Outcome.CODE_EXECUTION_ERROR,
        "TypeError: X got an unexpected keyword argument 'seed'",
        "`seed`",
    ),
    "_forgotten_id": (Outcome.SCORING_FAILED, "the submission has no column 'key'", "column was missing"),
    "_wrong_file": (Outcome.SUBMISSION_MISSING, "the program wrote no submission.csv", "never wrote"),
    "_wrong_rows": (
        Outcome.CODE_EXECUTION_ERROR,
        "ValueError: Length of values (200) does not match length of index (100)",
        "other rows",
    ),
}


@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: slip.__name__)
def test_a_slip_is_mended_by_what_the_failure_says_and_the_rest_is_kept(slip):
    clean = draft(7)
    slipped = slip(clean, Random(1))
    assert slipped != clean
    outcome, message, cause = FAILURES[slip.__name__]
    reply = answer(prompt(Operator.DEBUG, card(slipped, outcome, message=message)), 1)
    assert cause in parse_reply(reply.text).plan
    assert program(reply) == clean


def test_a_timeout_makes_the_program_cheaper():
    slow = render_program(draw_recipe(Random(12), FACTS), FACTS)
    reply = answer(prompt(Operator.DEBUG, card(slow, Outcome.TIMEOUT, error_signature="timeout")), 1)
    assert "cheaper" in parse_reply(reply.text).plan
    assert estimated_seconds(recipe_of(program(reply)), FACTS) < estimated_seconds(recipe_of(slow), FACTS)


def test_too_many_components_are_lowered_to_what_the_table_has():
    wide = render_program(too_wide(draw_recipe(Random(3), FACTS), FACTS), FACTS)
    message = "ValueError: n_components=203 must be between 0 and min(n_samples, n_features)=6 with svd_solver='full'"
    reply = answer(prompt(Operator.DEBUG, card(wide, Outcome.CODE_EXECUTION_ERROR, message=message)), 1)
    assert "components" in parse_reply(reply.text).plan
    assert recipe_of(program(reply)).ensemble.branches[0].reduce.size == 2


def test_an_unknown_failure_leads_to_a_simpler_program_until_there_is_none():
    source = draft(11)
    for _ in range(3):
        mended = program(
            answer(
                prompt(Operator.DEBUG, card(source, Outcome.CODE_EXECUTION_ERROR, message="LinAlgError: singular")), 1
            )
        )
        assert mended != source
        source = mended
        if recipe_of(source).ensemble == plain_recipe(FACTS).ensemble:
            break
    assert recipe_of(source).ensemble.how == "single"
    assert recipe_of(source).steps == ()


def mixed(rows: int, seed: int = 0) -> pd.DataFrame:
    """Numbers, categories, booleans, gaps, free text and two targets that follow from them."""
    rng = np.random.default_rng(seed)
    size, age = rng.gamma(3, 10, rows), rng.integers(1, 90, rows)
    colour = rng.choice(["red", "blue", "green"], rows)
    price = 5 * size + 0.1 * age**2 + np.where(colour == "red", 40, 0) + rng.normal(0, 5, rows)
    return pd.DataFrame(
        {
            "code": [f"{i:05d}" for i in range(rows)],
            "size": np.where(rng.random(rows) < 0.1, np.nan, size).round(2),
            "age": age,
            "colour": np.where(rng.random(rows) < 0.05, None, colour),
            "new": rng.random(rows) < 0.3,
            "note": [f"lot {rng.integers(0, 5000)} of {rng.choice(['north', 'south'])} hall" for _ in range(rows)],
            "price": price.round(1),
            "quality": np.where(price > np.quantile(price, 0.7), "high", np.where(price > 120, "middle", "low")),
            "dear": price > np.median(price),
        }
    )


async def package_of(folder: Path, target: list[str], metric: str, **changes) -> TaskPackage:
    table = mixed(220)
    kept = [column for column in table if column not in ("price", "quality", "dear") or column in target]
    (folder / "mixed.csv").write_text(table[kept].assign(**changes).to_csv(index=False))
    return await new_task(
        folder / "mixed.csv",
        target=target,
        metric=metric,
        destination=folder / "tasks" / "mixed",
        id_column="code",
        test_fraction=0.4,
        runner=RUNNER,
    )


class Trial:
    """Asks the policy and runs what it answers, as a search would."""

    def __init__(self, package: TaskPackage, policy: RecipePolicy) -> None:
        self.task = public_task(package)
        self.policy = policy
        patient = Limits(wall_seconds=600)  # a slow machine must not make a program fail
        self.executor = LocalExecutor(task_root=package.root.parent, runner=RUNNER, limits=patient, parallel=2)
        self.settings = JobSettings(data_dir=package.name, timeout_seconds=600)
        self.cards: list[ExperienceCard] = []

    async def attempt(self, operator: Operator, *parents: ExperienceCard, seed: int) -> ExperienceCard:
        messages = build_prompt(operator, self.task, parents, Surroundings(limits=LIMITS))
        reply = await self.policy.complete(messages, seed=seed)
        attempt = Attempt(
            run_id="trial",
            task=self.task.manifest.name,
            attempt=len(self.cards),
            operator=operator,
            parents=tuple(parent.attempt for parent in parents),
            selection=Selection(reason="test"),
        )
        card = await evaluate_reply(reply, attempt, executor=self.executor, settings=self.settings)
        self.cards.append(card)
        return card


GENERAL = RecipePolicy(slip_rate=0.0, general=True)


def test_general_programs_name_no_column_and_carry_their_recipe():
    for seed in range(30):
        source = program(answer(prompt(Operator.DRAFT), seed, GENERAL))
        names = {*FACTS.ids, *FACTS.targets, *(column.name for column in FACTS.train.columns)}
        assert not {name for name in names if f'"{name}"' in source}
        assert recipe_of(source)


def test_general_programs_share_names_whatever_the_recipe_says_of_style():
    sources = [program(answer(prompt(Operator.DRAFT), seed, GENERAL)) for seed in range(20)]
    assert {recipe_of(source).style for source in sources} == {0, 1}
    assert all("X_train" in source and "new_features" not in source for source in sources)


KINDS = [(["price"], "rmse"), (["quality"], "f1"), (["dear"], "auc"), (["price", "age"], "mae")]


@pytest.mark.parametrize("policy", [STEADY, GENERAL], ids=["named", "general"])
@pytest.mark.parametrize(("target", "metric"), KINDS)
async def test_a_draft_runs_and_its_own_estimate_is_printed(tmp_path, target, metric, policy):
    trial = Trial(await package_of(tmp_path, target, metric), policy)
    card = await trial.attempt(Operator.DRAFT, seed=1)
    assert card.outcome is Outcome.SUCCESS, card.message
    assert card.validation is not None
    assert card.self_reported is not None


@pytest.mark.slow
@pytest.mark.parametrize(("target", "metric"), [*KINDS, (["quality"], "balanced_accuracy"), (["dear"], "log_loss")])
async def test_programs_run_on_every_kind_of_table(tmp_path, target, metric):
    trial = Trial(await package_of(tmp_path, target, metric), STEADY)
    await asyncio.gather(*[trial.attempt(Operator.DRAFT, seed=seed) for seed in range(6)])
    failed = [f"{card.message}\n{card.source}" for card in trial.cards if card.outcome is not Outcome.SUCCESS]
    assert len(failed) <= 1, failed[0]


@pytest.mark.slow
async def test_every_slip_fails_for_real_and_is_mended_for_real(tmp_path):
    package = await package_of(tmp_path, ["price"], "rmse")
    trial = Trial(package, STEADY)
    facts = read_prompt(build_prompt(Operator.DRAFT, trial.task, (), Surroundings(limits=LIMITS))).facts
    sources = [slip(render_program(draw_recipe(Random(n), facts), facts), Random(n)) for n, slip in enumerate(SLIPS)]
    sources.append(render_program(too_wide(draw_recipe(Random(0), facts), facts), facts))
    for source in sources:
        attempt = Attempt(
            run_id="slips",
            task="mixed",
            attempt=0,
            operator=Operator.DRAFT,
            parents=(),
            selection=Selection(reason="test"),
        )
        reply = Completion(text=f"A plan.\n\n```python\n{source}```\n")
        failed = await evaluate_reply(reply, attempt, executor=trial.executor, settings=trial.settings)
        assert failed.outcome in DEBUGGABLE, source
        mended = await trial.attempt(Operator.DEBUG, failed, seed=0)
        assert "cannot tell" not in mended.plan, failed.message
        assert mended.outcome is Outcome.SUCCESS, f"{failed.message} -> {mended.message}"


async def run_on(folder: Path, on: PublicTask, seed: int) -> pd.DataFrame:
    """Runs a draft on public files alone and returns its submission."""
    spec = RunSpec(
        argv=(PYTHON, "main.py"),
        files={"main.py": draft_source.encode()} if (draft_source := await _draft(on, seed)) else {},
        inputs={"data": folder},
        environment={"DATA_DIR": f"{INPUTS}/data"},
        limits=Limits(wall_seconds=600),
        artifacts={"submission.csv": 10**7},
    )
    result = await RUNNER.run(spec)
    assert result.exit_code == 0, f"{result.log.text}\n{draft_source}"
    assert "Final Validation Score: " in result.log.text
    (folder / "submission.csv").write_bytes(result.artifacts["submission.csv"].content or b"")
    return pd.read_csv(folder / "submission.csv", dtype={"code": str})


async def _draft(on: PublicTask, seed: int) -> str:
    return program(await STEADY.complete(prompt(Operator.DRAFT, on=on), seed=seed))


@pytest.mark.slow
async def test_a_probability_for_each_class_is_written_to_the_column_of_the_class(tmp_path):
    table = mixed(200).drop(columns=["price", "dear"])
    table[:140].to_csv(tmp_path / "train.csv", index=False)
    table[140:].drop(columns="quality").to_csv(tmp_path / "test.csv", index=False)
    targets = ("class_low", "class_middle", "class_high")
    table[140:][["code"]].assign(**dict.fromkeys(targets, 1 / 3)).to_csv(
        tmp_path / "sample_submission.csv", index=False
    )
    columns = Columns(id=("code",), target=targets)
    metric = Metric(name="MultiClassLogLoss", higher_is_better=False, prediction="probability")
    on = PublicTask(
        manifest=Manifest(name="chances", metric=metric, columns=columns),
        description="",
        data=preview_data(tmp_path, columns),
    )
    for seed in range(4):
        submission = await run_on(tmp_path, on, seed)
        assert list(submission.columns) == ["code", *targets]
        assert submission["code"].tolist() == table["code"][140:].tolist()
        assert np.allclose(submission[list(targets)].sum(axis=1), 1.0)
        likeliest = submission[list(targets)].idxmax(axis=1).str.removeprefix("class_")
        assert (likeliest.to_numpy() == table["quality"][140:].to_numpy()).mean() > 0.4


@pytest.mark.slow
async def test_a_wide_table_whose_profile_is_shortened_is_handled(tmp_path):
    rng = np.random.default_rng(0)
    wide = pd.DataFrame(rng.normal(size=(160, 90)), columns=[f"c{i}" for i in range(90)]).round(3)
    wide["late"] = rng.choice(["a", "b"], 160)
    wide.loc[::7, "c88"] = np.nan
    wide.insert(0, "code", [f"{i:04d}" for i in range(160)])
    wide["answer"] = (wide["c0"] + wide["c85"]).round(3)
    wide[:100].to_csv(tmp_path / "train.csv", index=False)
    wide[100:].drop(columns="answer").to_csv(tmp_path / "test.csv", index=False)
    wide[100:][["code"]].assign(answer=0).to_csv(tmp_path / "sample_submission.csv", index=False)
    columns = Columns(id=("code",), target=("answer",))
    on = PublicTask(
        manifest=Manifest(
            name="wide", task_type="regression", metric=Metric(name="rmse", higher_is_better=False), columns=columns
        ),
        description="",
        data=preview_data(tmp_path, columns),
    )
    facts = read_prompt(prompt(Operator.DRAFT, on=on)).facts
    assert (facts.feature_count, facts.shortened, facts.has_missing) == (91, True, True)
    for seed in range(4):
        submission = await run_on(tmp_path, on, seed)
        assert submission["code"].tolist() == wide["code"][100:].tolist()
        assert np.isfinite(submission["answer"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", [*list(ANCHORS)[:5], "textures", "meats"])
async def test_every_operator_works_on_an_anchor(tmp_path, name):
    trial = Trial(await build_anchor(name, tmp_path / name, runner=RUNNER), RecipePolicy())
    drafts = await asyncio.gather(*[trial.attempt(Operator.DRAFT, seed=seed) for seed in range(8)])
    good = [card for card in drafts if card.may_parent(Operator.IMPROVE)]
    improves = [trial.attempt(Operator.IMPROVE, good[seed], seed=seed) for seed in range(5)]
    crossovers = [trial.attempt(Operator.CROSSOVER, good[seed], good[seed + 1], seed=seed) for seed in range(5)]
    await asyncio.gather(*improves, *crossovers)
    failed = [card for card in trial.cards if card.outcome is not Outcome.SUCCESS]
    assert len(failed) <= 4, [card.message for card in failed]
    mended = await asyncio.gather(*[trial.attempt(Operator.DEBUG, card, seed=0) for card in failed])
    assert all(card.outcome is Outcome.SUCCESS for card in mended), [card.message for card in mended]


def test_a_request_for_a_note_is_answered_with_plan_and_scores():
    parent, child = card(draft(1), plan="A forest."), card(draft(2), plan="A wider forest.")
    note = answer(summary_prompt(child, parent, length=300)).text
    assert "A wider forest." in note
    assert "```" not in note
