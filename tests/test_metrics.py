import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from openmle_gym.grading import grade_submission
from openmle_gym.isolation.process import ProcessRunner
from openmle_gym.manifest import Columns, Manifest, Metric, write_manifest
from openmle_gym.metrics import METRICS, render_metric_module
from openmle_gym.task import load_package
from scipy import stats
from sklearn import metrics as sk

ROWS = st.shared(st.integers(2, 40), key="rows")
CLASSES = arrays(np.int64, ROWS, elements=st.integers(0, 4))
WORDS = arrays(object, ROWS, elements=st.sampled_from(["cat", "dog", "cow"])).map(lambda words: words.astype(str))
BINARY = arrays(np.int64, ROWS, elements=st.integers(0, 1))
NUMBERS = arrays(np.float64, ROWS, elements=st.floats(-1e3, 1e3, width=32))
POSITIVE = arrays(np.float64, ROWS, elements=st.floats(0.125, 1e3, width=32))
PROBABILITIES = arrays(np.float64, ROWS, elements=st.floats(1e-6, 1 - 1e-6) | st.sampled_from([0.25, 0.5]))


def ours(name: str, y_true: np.ndarray, y_pred: np.ndarray) -> float:
    score = METRICS[name].function(y_true, y_pred)
    assert type(score) is float
    return score


@pytest.mark.filterwarnings("ignore:.*y_pred contains classes not in y_true", "ignore:A single label was found")
@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("accuracy", sk.accuracy_score),
        ("balanced_accuracy", sk.balanced_accuracy_score),
        ("f1", lambda true, pred: sk.f1_score(true, pred, average="macro", zero_division=0)),
        ("f1_micro", lambda true, pred: sk.f1_score(true, pred, average="micro", zero_division=0)),
        ("f1_weighted", lambda true, pred: sk.f1_score(true, pred, average="weighted", zero_division=0)),
        ("mcc", sk.matthews_corrcoef),
    ],
)
@given(st.data())
@settings(max_examples=60)
def test_label_metrics_agree_with_scikit_learn(name: str, reference, data: st.DataObject) -> None:
    labels = data.draw(st.sampled_from([CLASSES, WORDS]))
    y_true, y_pred = data.draw(labels), data.draw(labels)
    assert ours(name, y_true, y_pred) == pytest.approx(reference(y_true, y_pred), abs=1e-9)


@given(CLASSES, CLASSES)
@settings(max_examples=60)
def test_qwk_agrees_with_scikit_learn_over_all_grades(y_true: np.ndarray, y_pred: np.ndarray) -> None:
    assume(len(np.union1d(y_true, y_pred)) > 1)
    reference = sk.cohen_kappa_score(y_true, y_pred, weights="quadratic", labels=range(5))
    assert ours("qwk", y_true, y_pred) == pytest.approx(reference, abs=1e-9)


@given(BINARY, NUMBERS | PROBABILITIES)
@settings(max_examples=100)
def test_auc_agrees_with_scikit_learn_ties_included(y_true: np.ndarray, y_pred: np.ndarray) -> None:
    assume(len(np.unique(y_true)) == 2)
    assert ours("auc", y_true, y_pred) == pytest.approx(sk.roc_auc_score(y_true, y_pred), abs=1e-9)
    words = np.where(y_true == 1, "yes", "no")
    assert ours("auc", words, y_pred) == ours("auc", y_true, y_pred)


@given(BINARY, PROBABILITIES)
@settings(max_examples=60)
def test_log_loss_agrees_with_scikit_learn(y_true: np.ndarray, y_pred: np.ndarray) -> None:
    reference = sk.log_loss(y_true, y_pred, labels=[0, 1])
    assert ours("log_loss", y_true, y_pred) == pytest.approx(reference, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "reference", "elements"),
    [
        ("rmse", sk.root_mean_squared_error, NUMBERS),
        ("mae", sk.mean_absolute_error, NUMBERS),
        ("r2", sk.r2_score, NUMBERS),
        ("rmsle", sk.root_mean_squared_log_error, POSITIVE),
        ("mape", sk.mean_absolute_percentage_error, POSITIVE),
        ("median_ae", sk.median_absolute_error, NUMBERS),
        ("pinball_10", lambda true, pred: sk.mean_pinball_loss(true, pred, alpha=0.1), NUMBERS),
        ("pinball_90", lambda true, pred: sk.mean_pinball_loss(true, pred, alpha=0.9), NUMBERS),
    ],
)
@given(st.data())
@settings(max_examples=60)
def test_number_metrics_agree_with_scikit_learn(name: str, reference, elements, data: st.DataObject) -> None:
    y_true, y_pred = data.draw(elements), data.draw(elements)
    assume(np.var(y_true) > 1e-3)
    assert ours(name, y_true, y_pred) == pytest.approx(reference(y_true, y_pred), rel=1e-9, abs=1e-9)


@given(BINARY, CLASSES.map(lambda classes: classes % 3))
@settings(max_examples=60)
def test_binary_f1_agrees_with_scikit_learn_and_a_third_label_is_just_wrong(
    y_true: np.ndarray, y_pred: np.ndarray
) -> None:
    assume(len(np.unique(y_true)) == 2)
    reference = sk.f1_score(y_true == 1, y_pred == 1, zero_division=0)
    assert ours("f1_binary", y_true, y_pred) == pytest.approx(reference, abs=1e-9)
    assert ours("f1_binary", y_true, y_pred.astype(float)) == pytest.approx(reference, abs=1e-9)


@given(BINARY, PROBABILITIES)
@settings(max_examples=60)
def test_average_precision_and_brier_agree_with_scikit_learn(y_true: np.ndarray, y_pred: np.ndarray) -> None:
    assume(len(np.unique(y_true)) == 2)
    assert ours("average_precision", y_true, y_pred) == pytest.approx(
        sk.average_precision_score(y_true, y_pred), abs=1e-9
    )
    assert ours("brier", y_true, y_pred) == pytest.approx(sk.brier_score_loss(y_true, y_pred), abs=1e-9)


TABLE = st.integers(1, 20).flatmap(lambda rows: arrays(np.float64, (rows, 3), elements=st.floats(0.01, 1.0)))


@given(TABLE, st.data())
@settings(max_examples=60)
def test_multiclass_log_loss_agrees_with_scikit_learn(weights: np.ndarray, data: st.DataObject) -> None:
    classes = data.draw(arrays(np.int64, len(weights), elements=st.integers(0, 2)))
    reference = sk.log_loss(classes, weights / weights.sum(axis=1, keepdims=True), labels=[0, 1, 2])
    assert ours("multiclass_log_loss", np.eye(3)[classes], weights) == pytest.approx(reference, abs=1e-9)


@given(TABLE, st.data())
@settings(max_examples=60)
def test_the_mean_of_auc_over_a_column_for_each_class_is_the_one_vs_rest_macro_average(
    weights: np.ndarray, data: st.DataObject
) -> None:
    weights = weights / weights.sum(axis=1, keepdims=True)
    classes = data.draw(arrays(np.int64, len(weights), elements=st.integers(0, 2)))
    assume(len(np.unique(classes)) == 3)
    reference = sk.roc_auc_score(classes, weights, multi_class="ovr", average="macro")
    columns = [ours("auc", np.eye(3)[classes][:, n], weights[:, n]) for n in range(3)]
    assert np.mean(columns) == pytest.approx(reference, abs=1e-9)


@given(NUMBERS, NUMBERS)
@settings(max_examples=60)
def test_correlations_agree_with_scipy(y_true: np.ndarray, y_pred: np.ndarray) -> None:
    assume(np.ptp(y_true) > 1e-3)
    assume(np.ptp(y_pred) > 1e-3)
    assert ours("pearson", y_true, y_pred) == pytest.approx(stats.pearsonr(y_true, y_pred).statistic, abs=1e-6)
    assert ours("spearman", y_true, y_pred) == pytest.approx(stats.spearmanr(y_true, y_pred).statistic, abs=1e-9)


@given(NUMBERS, NUMBERS)
@settings(max_examples=60)
def test_smape_is_the_sum_of_its_parts(y_true: np.ndarray, y_pred: np.ndarray) -> None:
    parts = [2 * abs(a - b) / (abs(a) + abs(b)) if a or b else 0.0 for a, b in zip(y_true, y_pred, strict=True)]
    assert ours("smape", y_true, y_pred) == pytest.approx(sum(parts) / len(parts), abs=1e-9)


ITEMS = st.lists(st.sampled_from("abcdef"), max_size=7)


@given(st.lists(st.tuples(ITEMS.filter(bool), ITEMS), min_size=1, max_size=6))
@settings(max_examples=80)
def test_ranking_metrics_agree_with_their_definitions(rows: list[tuple[list[str], list[str]]]) -> None:
    y_true, y_pred = (np.array([" ".join(row[side]) for row in rows], dtype=object) for side in (0, 1))
    k, precisions, gains = 5, [], []
    for wanted, guesses in rows:
        hits, total, gain = 0, 0.0, 0.0
        for place, guess in enumerate(guesses[:k]):
            if guess in wanted and guess not in guesses[:place]:
                hits += 1
                total += hits / (place + 1)
                gain += 1 / math.log2(place + 2)
        most = min(len(set(wanted)), k)
        precisions.append(total / most)
        gains.append(gain / sum(1 / math.log2(place + 2) for place in range(most)))
    assert ours("map_at_5", y_true, y_pred) == pytest.approx(np.mean(precisions), abs=1e-12)
    assert ours("ndcg_at_5", y_true, y_pred) == pytest.approx(np.mean(gains), abs=1e-12)


@given(st.permutations("abcdef"), st.sets(st.sampled_from("abcdef"), min_size=1))
@settings(max_examples=60)
def test_ndcg_agrees_with_scikit_learn_on_whole_rankings(ranking: list[str], wanted: set[str]) -> None:
    relevance = [[float(item in wanted) for item in "abcdef"]]
    scores = [[-float(ranking.index(item)) for item in "abcdef"]]
    found = ours("ndcg_at_5", np.array([" ".join(wanted)]), np.array([" ".join(ranking)]))
    assert found == pytest.approx(sk.ndcg_score(relevance, scores, k=5), abs=1e-9)


def run_lengths(mask: np.ndarray) -> str:
    """Start and length of each run, starts counted from 1."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask, [0]])))
    return " ".join(f"{start + 1} {end - start}" for start, end in edges.reshape(-1, 2))


@given(arrays(np.int64, st.just((2, 30)), elements=st.integers(0, 1)))
@settings(max_examples=80)
def test_overlaps_of_masks_agree_with_scikit_learn(masks: np.ndarray) -> None:
    assume(masks.any())
    encoded = [np.array([run_lengths(mask)], dtype=object) for mask in masks]
    assert ours("dice", *encoded) == pytest.approx(sk.f1_score(*masks), abs=1e-12)
    assert ours("iou", *encoded) == pytest.approx(sk.jaccard_score(*masks), abs=1e-12)


@pytest.mark.parametrize(
    ("name", "y_true", "y_pred", "score"),
    [
        ("accuracy", [1, 0, 1, 1], [1.0, 0.0, 0.0, 1.0], 0.75),
        ("balanced_accuracy", [0, 0, 0, 1], [0, 0, 0, 0], 0.5),
        ("f1", ["a", "a", "b"], ["a", "b", "b"], 2 / 3),
        ("mcc", [0, 0, 1, 1], [1, 1, 1, 1], 0.0),
        ("qwk", [0, 3], [3, 0], -1.0),
        ("qwk", [0, 1, 3], [0.2, 0.8, 3.4], 1.0),
        ("qwk", [2, 2], [2, 2], 1.0),
        ("auc", [0, 1, 1], [0.5, 0.5, 0.9], 0.75),
        ("auc", [False, True], [-3.0, 7.0], 1.0),
        ("log_loss", [1, 0], [0.5, 0.5], math.log(2)),
        ("log_loss", [1], [0.25], math.log(4)),
        ("log_loss", [1, 0], [0.0, 0.0], -math.log(1e-15) / 2),
        ("rmse", [0, 0], [3, 4], math.sqrt(12.5)),
        ("rmsle", [0, 0], [-5, 0], 0.0),
        ("rmsle", [math.e - 1], [0], 1.0),
        ("mae", [1, 2], [2, 0], 1.5),
        ("mape", [1, 4], [2, 2], 0.75),
        ("r2", [1, 2, 3], [2, 2, 2], 0.0),
        ("f1_binary", [0, 1, 1], [0, 0, 0], 0.0),
        ("f1_binary", ["9", "10"], ["9", "9"], 2 / 3),
        ("average_precision", [0, 1], [0.5, 0.5], 0.5),
        ("brier", ["no", "yes"], [0.5, 1.0], 0.125),
        ("median_ae", [0, 0, 0], [1, 2, 9], 2.0),
        ("smape", [0, 1, -2], [0, -1, 2], 4 / 3),
        ("pinball_90", [1, 1], [0, 2], 0.5),
        ("pearson", [1, 2, 3], [5, 5, 5], 0.0),
        ("pearson", [1, 2], [1e-300, 2e-300], 1.0),
        ("spearman", [1, 2, 3], [1, 10, 100], 1.0),
        ("spearman", [1, 2, 3], [0, 0, 0], 0.0),
        ("map_at_3", ["a", "b"], ["x a a", "a x y b"], 0.25),
        ("map_at_3", ["", "b"], ["a", "b"], 1.0),
        ("ndcg_at_5", ["a"], ["x a"], 1 / math.log2(3)),
        ("token_accuracy", ["a b c", "d"], ["a x", "d e"], 2 / 5),
        ("token_accuracy", [""], [""], 1.0),
        ("dice", ["1 3", ""], ["2 3", ""], (2 / 3 + 1) / 2),
        ("iou", ["1 3", ""], ["2 3", "7 1"], 0.25),
    ],
)
def test_worked_examples(name: str, y_true: list, y_pred: list, score: float) -> None:
    assert ours(name, np.array(y_true), np.array(y_pred)) == pytest.approx(score, abs=1e-12)


@pytest.mark.parametrize(("name", "labels"), [("auc", [1, 1]), ("auc", [0, 1, 2]), ("log_loss", [0, 1, 2])])
def test_a_binary_metric_refuses_answers_of_another_number_of_classes(name: str, labels: list[int]) -> None:
    with pytest.raises(ValueError, match="two classes"):
        METRICS[name].function(np.array(labels), np.linspace(0, 1, len(labels)))


@pytest.mark.parametrize(
    ("name", "y_true", "y_pred", "words"),
    [
        *(
            (name, [1, 2], [1, math.nan], "missing or infinite")
            for name in METRICS
            if METRICS[name].prediction == "number"
        ),
        *((name, [0, 1], [1, math.inf], "missing or infinite") for name in ("auc", "log_loss", "brier")),
        ("r2", [2, 2], [1, 2], "not all equal"),
        ("pearson", [2, 2], [1, 2], "not all equal"),
        ("spearman", [2, 2], [1, 2], "not all equal"),
        ("rmsle", [-1, 2], [1, 2], "at least 0"),
        ("multiclass_log_loss", [[0, 0], [0, 1]], [[0.5, 0.5]] * 2, "a single 1"),
        ("multiclass_log_loss", [[1], [1]], [[0.5]] * 2, "one column for each class"),
        ("map_at_5", ["", ""], ["a", "b"], "names an item"),
        ("ndcg_at_5", ["", ""], ["a", "b"], "names an item"),
        ("iou", ["1 2"], ["1 2 3"], "not a run-length encoded mask: '1 2 3'"),
        ("dice", ["1 2"], ["-1 2"], "not a run-length encoded mask"),
    ],
)
def test_what_has_no_score_is_refused(name: str, y_true: list, y_pred: list, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        METRICS[name].function(np.array(y_true), np.array(y_pred))


def example(name: str) -> tuple[list, list, list]:
    """Answers, perfect predictions and bad ones."""
    if name == "multiclass_log_loss":
        one_hot = np.eye(3)[[0, 1, 2, 1]].tolist()
        return one_hot, one_hot, [[0.2, 0.3, 0.5]] * 4
    if name == "f1_binary":
        return ["no", "yes", "yes", "no"], ["no", "yes", "yes", "no"], ["yes", "no", "yes", "no"]
    if name in ("dice", "iou"):
        return ["1 3", "", "5 2 9 1", "4 4"], ["1 3", "", "5 2 9 1", "4 4"], ["2 3", "1 1", "5 2", "1 1"]
    if METRICS[name].prediction == "label":
        return ["a", "b", "b", "c"], ["a", "b", "b", "c"], ["b", "a", "c", "c"]
    if METRICS[name].prediction == "probability":
        return [0, 1, 1, 0], [0.0, 1.0, 1.0, 0.0], [0.75, 0.5, 0.25, 0.5]
    return [1, 2, 4, 3], [1.0, 2.0, 4.0, 3.0], [4.0, 4.0, 1.0, 1.0]


@pytest.mark.parametrize("name", METRICS)
def test_direction_and_bounds_are_those_of_the_function(name: str) -> None:
    spec = METRICS[name]
    y_true, perfect, bad = map(np.array, example(name))
    best, worse = spec.function(y_true, perfect), spec.function(y_true, bad)
    assert spec.name == name
    assert (best > worse) == spec.higher_is_better
    bound = spec.theoretical_max if spec.higher_is_better else spec.theoretical_min
    assert best == pytest.approx(bound, abs=1e-12)
    low, high = spec.theoretical_min, spec.theoretical_max
    assert (-math.inf if low is None else low) <= worse <= (math.inf if high is None else high)


LOADS = """
import json, sys
import pandas as pd

scores = {}
for name, (y_true, y_pred) in json.load(open("examples.json")).items():
    module = {"__name__": name}
    exec(compile(open(name + ".py").read(), name, "exec"), module)
    (metrics,) = [member for key, member in module.items() if key.endswith("Metrics")]
    true = pd.DataFrame({"shop": ["a", "a", "b", "b"], "day": [1, 2, 1, 2], "x": y_true, "z": y_true})
    pred = pd.DataFrame({"shop": ["a", "a", "b", "b"], "day": [1, 2, 1, 2], "x": y_true, "z": y_pred}).iloc[::-1]
    metric = metrics()
    metric.validate_submission(pred, true)
    scores[name] = [metric.evaluate(y_true=true, y_pred=pred), metric.value, metric.higher_is_better]
assert not [name for name in sys.modules if name.startswith("openmle")]
print(json.dumps(scores))
"""


def test_every_rendered_module_stands_alone_aligns_by_id_and_averages_targets(tmp_path: Path) -> None:
    columns = Columns(id=("shop", "day"), target=("x", "z"))
    examples = {}
    for name, spec in METRICS.items():
        if spec.columns == "together":
            continue
        (tmp_path / f"{name}.py").write_text(render_metric_module(spec, columns))
        y_true, perfect, bad = example(name)
        examples[name] = (perfect if spec.prediction == "number" else y_true, bad)
    (tmp_path / "examples.json").write_text(json.dumps(examples))
    done = subprocess.run([sys.executable, "-I", "-c", LOADS], cwd=tmp_path, check=True, capture_output=True, text=True)
    for name, (score, value, higher_is_better) in json.loads(done.stdout).items():
        spec = METRICS[name]
        y_true, y_pred = (np.array(values) for values in examples[name])
        halves = (spec.function(y_true, y_true), spec.function(y_true, y_pred))
        assert score == pytest.approx(sum(halves) / 2, abs=1e-12)
        assert (value, higher_is_better) == ("x", spec.higher_is_better)


def test_a_rendered_module_scores_columns_that_belong_together(tmp_path: Path) -> None:
    columns = Columns(id=("id",), target=("a", "b"))
    (tmp_path / "metric.py").write_text(render_metric_module(METRICS["multiclass_log_loss"], columns))
    script = (
        "import sys, pandas as pd; sys.path.insert(0, '.'); from metric import MulticlassLogLossMetrics as M\n"
        "true = pd.DataFrame({'id': [1, 2], 'a': [1, 0], 'b': [0, 1]})\n"
        "print(M().evaluate(y_true=true, y_pred=pd.DataFrame({'id': [2, 1], 'b': [0.5, 1.0], 'a': [0.5, 0.5]})))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) == pytest.approx((math.log(2) + math.log(3)) / 2)


async def test_a_rendered_metric_grades_ids_and_labels_that_pandas_takes_for_missing(tmp_path: Path) -> None:
    root = tmp_path / "task"
    for folder in ("data/public", "data/private", "utils"):
        (root / folder).mkdir(parents=True)
    answers = "id,y\nNA,None\nb,x\nc,x\nd,None\n"
    (root / "data/public/description.txt").write_text("Predict.")
    (root / "data/public/sample_submission.csv").write_text(answers)
    (root / "data/private/test_answer.csv").write_text(answers)
    columns = Columns(id=("id",), target=("y",))
    (root / "utils/metric.py").write_text(render_metric_module(METRICS["accuracy"], columns))
    metric = Metric(name="accuracy", higher_is_better=True, prediction="label")
    write_manifest(Manifest(name="task", metric=metric, columns=columns), root / "task.toml")
    grade = await grade_submission(
        load_package(root),
        b"id,y\nd,None\nc,None\nb,x\nNA,None\n",
        splits=["all"],
        runner=ProcessRunner(allow_no_isolation=True),
    )
    assert grade.scores == {"all": 0.75}, grade.message


@pytest.mark.parametrize(
    ("pred", "words"),
    [
        ({"id": [1, 2]}, "no column 'y'"),
        ({"id": [1, 1], "y": [1, 2]}, "an id is there twice"),
        ({"id": [1], "y": [1]}, "the ids are not those of the test data"),
        ({"id": [1, 3], "y": [1, 2]}, "the ids are not those of the test data"),
        ({"id": [1, 2], "y": [1, None]}, "a prediction is missing in column 'y'"),
    ],
)
def test_a_rendered_module_refuses_a_wrong_submission(tmp_path: Path, pred: dict, words: str) -> None:
    module = tmp_path / "metric.py"
    module.write_text(render_metric_module(METRICS["rmse"], Columns(id=("id",), target=("y",))))
    script = (
        "import sys, pandas as pd; sys.path.insert(0, '.'); from metric import RmseMetrics\n"
        f"RmseMetrics().validate_submission(pd.DataFrame({pred!r}), pd.DataFrame({{'id': [1, 2], 'y': [1, 2]}}))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip().endswith(words)
