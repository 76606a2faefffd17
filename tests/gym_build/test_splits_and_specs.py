"""What the data say about splits, and which tasks are sound and different."""

import random
from pathlib import Path

import pandas as pd
import pytest
from gym_build.made_up import SPEC_FIELDS, houses, spec
from openmle_gym.build.columns import find_candidates, profile_column
from openmle_gym.build.profile import TableProfile, profile_folder
from openmle_gym.build.source import Source, parse_source, refuse_benchmark
from openmle_gym.build.spec import TaskSpec, distinct_specs, parse_spec, read_json, spec_fields, spec_problems
from openmle_gym.build.split_advisor import SplitAdvice, advise_split, check_split
from openmle_gym.chat import Completion
from openmle_gym.errors import ConfigError, ReplyError

CHANCE = random.Random(3)


def advised(table: pd.DataFrame, target: str) -> SplitAdvice:
    table = table.astype(str)
    columns = tuple(profile_column(str(name), table[name]) for name in table)
    profile = TableProfile(
        path="t.csv",
        format="csv",
        bytes=1,
        rows=len(table),
        column_count=len(columns),
        columns=columns,
        candidates=find_candidates(columns),
    )
    advice = advise_split(profile, table, [target])
    assert advice == advise_split(profile, table, [target])
    return advice


def patients(*, alike: bool) -> pd.DataFrame:
    """Ten visits of each of forty patients, who are sick as persons, or as it comes."""
    sick = {n: CHANCE.random() < 0.5 for n in range(40)}
    rows = [(f"v{n}", f"p{n % 40}", n % 13, sick[n % 40] if alike else CHANCE.random() < 0.5) for n in range(400)]
    return pd.DataFrame(rows, columns=["visit_id", "patient", "x", "sick"])


def test_groups_that_tell_the_target_are_kept_together() -> None:
    advice = advised(patients(alike=True), "sick")
    assert (advice.strategy, advice.column) == ("grouped", "patient")
    assert advice.probes[0].shared == 1.0
    assert advice.probes[0].gain > 0.8


def test_groups_that_tell_nothing_are_left_alone() -> None:
    advice = advised(patients(alike=False), "sick")
    assert advice.strategy == "stratified"
    assert [probe.leaks for probe in advice.probes] == [False]


def test_the_group_within_an_id_is_found() -> None:
    """As in tables whose ids are GROUP_NUMBER; where a group shares its fate, dividing its rows leaks."""
    fates = [CHANCE.random() < 0.5 for _ in range(150)]
    rows = [(f"{n // 3:04d}_{n % 3:02d}", n % 11, fates[n // 3]) for n in range(450)]
    advice = advised(pd.DataFrame(rows, columns=["PassengerId", "x", "Transported"]), "Transported")
    assert (advice.strategy, advice.column) == ("grouped", "prefix of PassengerId")


def series(*, drifts: bool) -> pd.DataFrame:
    level, rows = 0.0, []
    for day in pd.date_range("2024-01-01", periods=300):
        level += CHANCE.gauss(0, 1)
        rows.append((str(day.date()), CHANCE.random(), level if drifts else CHANCE.gauss(0, 1)))
    return pd.DataFrame(rows, columns=["date", "x", "sales"])


def test_a_target_that_drifts_is_divided_by_time() -> None:
    advice = advised(series(drifts=True), "sales")
    assert (advice.strategy, advice.column) == ("time", "date")


def test_a_target_that_does_not_drift_is_not() -> None:
    assert advised(series(drifts=False), "sales").strategy == "stratified"


def test_a_table_without_the_target_is_divided_at_random() -> None:
    assert advised(patients(alike=True).drop(columns="sick"), "sick").strategy == "random"


def frame(**columns: list[str]) -> pd.DataFrame:
    return pd.DataFrame(columns)


@pytest.mark.parametrize(
    ("advice", "train", "test", "wrong"),
    [
        (SplitAdvice(strategy="grouped", column="g"), frame(g=["a", "b"]), frame(g=["c"]), ""),
        (SplitAdvice(strategy="grouped", column="g"), frame(g=["a", "b"]), frame(g=["b", "c"]), "50.0% of the test"),
        (SplitAdvice(strategy="grouped", column="g"), frame(g=["a", ""]), frame(g=["", "c"]), ""),
        (SplitAdvice(strategy="grouped", column="prefix of g"), frame(g=["a_1"]), frame(g=["a_2"]), "100.0%"),
        (SplitAdvice(strategy="grouped", column="g"), frame(x=["a"]), frame(x=["a"]), ""),
        (SplitAdvice(strategy="time", column="t"), frame(t=["1", "2"]), frame(t=["2", "10"]), ""),
        (SplitAdvice(strategy="time", column="t"), frame(t=["1", "5"]), frame(t=["2", "10"]), "50.0%"),
        (SplitAdvice(strategy="time", column="t"), frame(t=["2024-02-01"]), frame(t=["2024-01-01"]), "100.0%"),
        (SplitAdvice(strategy="stratified"), frame(g=["a"]), frame(g=["a"]), ""),
    ],
)
def test_a_split_is_held_against_its_advice(
    advice: SplitAdvice, train: pd.DataFrame, test: pd.DataFrame, wrong: str
) -> None:
    said = check_split(advice, train, test)
    assert said.startswith(wrong) if wrong else said == ""


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("titanic", "competition", "titanic"),
        ("competition:titanic", "competition", "titanic"),
        ("https://www.kaggle.com/competitions/titanic/data?select=train.csv#x", "competition", "titanic"),
        ("https://www.kaggle.com/c/titanic", "competition", "titanic"),
        ("owner/some-data", "dataset", "owner/some-data"),
        ("https://www.kaggle.com/datasets/owner/some-data?x=1", "dataset", "owner/some-data"),
    ],
)
def test_a_source_is_read_in_every_form(text: str, kind: str, name: str) -> None:
    assert parse_source(text) == Source(kind=kind, name=name)  # type: ignore[arg-type]


def test_a_path_that_exists_wins(tmp_path: Path) -> None:
    (tmp_path / "a b.csv").write_text("x\n")
    source = parse_source(str(tmp_path / "a b.csv"))
    assert (source.kind, source.task_name) == ("local", "a-b")


@pytest.mark.parametrize("text", ["", "./gone", "gone.csv", "competition:a/b", "dataset:a", "a b", "https://x.com/c/y"])
def test_other_sources_are_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="source"):
        parse_source(text)


def test_competitions_of_mle_bench_are_refused_in_any_case() -> None:
    with pytest.raises(ConfigError, match="MLE-Bench"):
        refuse_benchmark(Source(kind="competition", name="AI4Code"))
    refuse_benchmark(Source(kind="competition", name="titanic"))


def test_a_library_metric_brings_its_direction_and_bounds() -> None:
    made = spec(metric="R2", higher_is_better=True, theoretical_min=5.0)
    assert (made.metric, made.theoretical_min, made.theoretical_max, made.prediction) == ("r2", None, 1.0, "number")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"higher_is_better": True}, "rmse has it False, not True"),
        ({"metric": "own"}, "metric_definition"),
        ({"id": ["price"]}, "both id and target"),
        ({"split": "grouped"}, "split_column"),
        ({"statement": "Short."}, "statement"),
        ({"colour": "blue"}, "colour"),
    ],
)
def test_an_unsound_task_says_what_is_wrong(changes: dict[str, object], said: str) -> None:
    wrong = parse_spec({**SPEC_FIELDS, **changes})
    assert isinstance(wrong, str)
    assert said in wrong


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"table": "other.csv"}, "there is no table `other.csv`; there are `train.csv`"),
        ({"table": ""}, "name the file"),
        ({"target": ["worth"]}, "no column 'worth'"),
        ({"target": ["town"]}, "rmse needs numbers, and column 'town' holds category"),
        ({"split": "time", "split_column": "day"}, "no column 'day'"),
    ],
)
def test_a_task_is_held_against_the_profile(changes: dict[str, object], said: str, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(houses())
    problems = "; ".join(spec_problems(spec(**changes), profile_folder(tmp_path)))
    assert said in problems if said else problems == ""


def test_near_duplicates_are_dropped_and_distinct_tasks_are_kept() -> None:
    specs = [
        spec(name="a"),
        spec(name="b", title="Another name, the same thing", statement=SPEC_FIELDS["statement"][::-1]),
        spec(name="c", metric="mae"),
        spec(
            name="d",
            metric="mae",
            target=["area"],
            statement="Each row is a house. Guess `area`, how large it is, as well as you can.",
        ),
        spec(name="A", metric="r2", higher_is_better=True),
        spec(
            name="f",
            title="Which houses are worth most",
            metric="spearman",
            higher_is_better=True,
            statement="An agent wants to know in which order to offer flats. Rank them by `price`, dearest first, alone.",
        ),
    ]
    kept, dropped = distinct_specs(specs)
    assert [each.name for each in kept] == ["a", "d", "f"]
    assert dropped == {"b": "has the target and the metric of a", "c": "says what a says", "A": "has the name of a"}


@pytest.mark.parametrize(
    "text", ['{"a": 1}', 'So:\n```json\n{"a": 1}\n```\nGood luck.', '<think>{"b": 2}</think>Well, {"a": 1} it is.']
)
def test_json_is_found_in_a_reply(text: str) -> None:
    assert read_json(Completion(text=text)) == '{"a": 1}'


@pytest.mark.parametrize(("finish", "code"), [("stop", "no_code"), ("length", "truncated_reply")])
def test_a_reply_without_json_says_why(finish: str, code: str) -> None:
    with pytest.raises(ReplyError) as refused:
        read_json(Completion(text='```json\n{"a": ', finish_reason=finish))
    assert refused.value.code == code


def test_every_field_of_a_task_is_explained_to_the_model() -> None:
    lines = spec_fields().splitlines()
    assert len(lines) == len(TaskSpec.model_fields)
    assert all(line.partition("): ")[2] for line in lines)
