"""Renders a recipe as a program that names nothing of its task: what small models learn to write.

It reads from the files which columns are ids, targets, numbers, categories and texts; its imports, its names and most of its
lines are the same in every program, and each choice of the recipe stands on a line of its own. Cross-validation, the
seed's digits and the second vocabulary, which say nothing of how good a program is, are left out.
"""

from openmle_gym.policies.recipe_code import compact, describe
from openmle_gym.policies.recipe_families import families
from openmle_gym.policies.recipe_features import derivations, encoder, imputer, reducer, scaler
from openmle_gym.policies.recipe_grammar import MARKER, SAMPLED_ROWS, TEXT_COLUMNS, Branch, Recipe, needs_calibration
from openmle_gym.policies.recipe_metrics import own_score
from openmle_gym.policies.recipe_prompt import MOST_CATEGORIES, TaskFacts
from openmle_gym.policies.recipe_source import Imports, literal

_IMPORTS = """\
import os
import warnings
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import pearsonr, spearmanr
from sklearn.calibration import *
from sklearn.cluster import *
from sklearn.compose import *
from sklearn.decomposition import *
from sklearn.discriminant_analysis import *
from sklearn.ensemble import *
from sklearn.feature_extraction.text import *
from sklearn.feature_selection import *
from sklearn.gaussian_process import *
from sklearn.impute import *
from sklearn.kernel_approximation import *
from sklearn.kernel_ridge import *
from sklearn.linear_model import *
from sklearn.metrics import *
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import *
from sklearn.neighbors import *
from sklearn.neural_network import *
from sklearn.pipeline import *
from sklearn.preprocessing import *
from sklearn.svm import *
from sklearn.tree import *

warnings.filterwarnings("ignore")"""
_READING = f"""\
DATA = Path(os.environ["DATA_DIR"])
sample = pd.read_csv(DATA / "sample_submission.csv", nrows=1)
ID = [c for c in sample.columns if c in pd.read_csv(DATA / "test.csv", nrows=1).columns]
TARGETS = [c for c in sample.columns if c not in ID]

train = pd.read_csv(DATA / "train.csv", dtype=dict.fromkeys(ID, str))
test = pd.read_csv(DATA / "test.csv", dtype=dict.fromkeys(ID, str))
train = train.dropna(subset=TARGETS)
train = train.sample(n=min(len(train), {SAMPLED_ROWS:_}), random_state=SEED).reset_index(drop=True)

columns = [c for c in test.columns if c in train.columns and c not in [*ID, *TARGETS]]
X_train, X_test = train[columns].copy(), test[columns].copy()
numeric = X_train.select_dtypes("number").columns.tolist()
categorical = [c for c in columns if c not in numeric and X_train[c].nunique() <= {MOST_CATEGORIES}]
texts = [c for c in columns if c not in [*numeric, *categorical]]
for frame in (X_train, X_test):
    frame[categorical] = frame[categorical].fillna("missing").astype(str)
    frame[texts] = frame[texts].fillna("").astype(str)
"""
_PREPARE = f"""\
def prepare(imputer, scaler, encoder):
    numbers = make_pipeline(imputer, scaler)
    words = [(TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 3), max_features={TEXT_COLUMNS}), c) for c in texts]
    return make_column_transformer((numbers, numeric), (encoder, categorical), *words, sparse_threshold=0)
"""


def can_be_general(facts: TaskFacts) -> bool:
    """Whether such programs fit the task: no images, one column for each target, ids beside the test rows."""
    ids_in_test = not facts.test.columns or set(facts.ids) <= facts.test.names
    return not facts.pictures and not facts.one_column_per_class and ids_in_test


def render_general(recipe: Recipe, facts: TaskFacts) -> str:
    """The program's source."""
    head = f'"""{describe(recipe, facts)}."""\n{MARKER}{compact(recipe)}\n{_IMPORTS}\nSEED = {recipe.seed % 10}'
    body = [_derived(recipe, facts), _PREPARE, _make_model(recipe, facts), _fitting(facts)]
    return f"{head}\n{_READING}\n" + "\n\n".join(part for part in body if part) + "\n"


def _derived(recipe: Recipe, facts: TaskFacts) -> str:
    if not recipe.steps:
        return ""
    first = "train[TARGETS[0]].to_numpy()" if facts.kind == "regression" else "pd.factorize(train[TARGETS[0]])[0]"
    return f"y = {first}\n{derivations(recipe, facts, Imports())}\n"


def _make_model(recipe: Recipe, facts: TaskFacts) -> str:
    ensemble, kind = recipe.ensemble, "Regressor" if facts.kind == "regression" else "Classifier"
    lines: list[str] = []
    for number, branch in enumerate(ensemble.branches, start=1):
        lines += _branch(branch, recipe, facts)
        if ensemble.how != "single":
            lines.append(f"model_{number} = model")
    members = ", ".join(f'("model_{n}", model_{n})' for n in range(1, len(ensemble.branches) + 1))
    if ensemble.how == "stack":
        last = "RidgeCV()" if facts.kind == "regression" else "LogisticRegression()"
        lines.append(f"model = Stacking{kind}([{members}], final_estimator={last}, cv=3)")
    elif ensemble.how == "average":
        soft = "" if facts.kind == "regression" else ', voting="soft"'
        weights = ", ".join(f"{weight:g}" for weight in ensemble.weights)
        lines.append(f"model = Voting{kind}([{members}]{soft}, weights=[{weights}])")
    how = {
        "log1p": "func=np.log1p, inverse_func=np.expm1",
        "sqrt": "func=np.sqrt, inverse_func=np.square",
        "standard": "transformer=StandardScaler()",
        "quantile": 'transformer=QuantileTransformer(output_distribution="normal", random_state=SEED)',
    }.get(recipe.target)
    if how:
        lines.append(f"model = TransformedTargetRegressor(model, {how})")
    return "\n".join(["def make_model():", *(f"    {line}" for line in [*lines, "return model"]), ""])


def _branch(branch: Branch, recipe: Recipe, facts: TaskFacts) -> list[str]:
    family = families(facts.kind)[branch.model.family]
    settings = [f"{name}={literal(value)}" for name, value in branch.model.settings.items() if value is not None]
    settings += [family.fixed] if family.fixed else []
    lines = [
        f"imputer = {imputer(recipe.fill, Imports())}",
        f"scaler = {scaler(branch, Imports())}",
        f"encoder = {encoder(branch, facts, Imports())}",
        f"model = {family.path.rpartition('.')[2]}({', '.join(settings)})",
    ]
    if branch.bags > 1:
        kind = "Regressor" if facts.kind == "regression" else "Classifier"
        lines.append(f"model = Bagging{kind}(model, n_estimators={branch.bags}, random_state=SEED)")
    method = "sigmoid" if needs_calibration(branch, recipe, facts) else branch.calibrate
    if method != "none":
        single = "" if family.has_probabilities else ", ensemble=False"
        lines.append(f'model = CalibratedClassifierCV(model, method="{method}", cv=3{single})')
    for step in reducer(branch, facts, Imports()):
        lines.append(f"model = make_pipeline({step}, model)")
    return [*lines, "model = make_pipeline(prepare(imputer, scaler, encoder), model)"]


def _fitting(facts: TaskFacts) -> str:
    score = own_score(facts).expression.format(truth="y[held]", guess="guess")
    if facts.kind == "regression":
        reading, stratify = ["y = train[column].to_numpy()"], ""
        held, predicted = (
            f"np.clip(model.predict({rows}), y.min(), y.max())" for rows in ("X_train.iloc[held]", "X_test")
        )
    else:
        reading = ["labels = LabelEncoder()", "y = labels.fit_transform(train[column])"]
        stratify = ", stratify=y" if facts.classes <= 20 else ""
        if facts.output == "label":
            held, predicted = "model.predict(X_train.iloc[held])", "labels.inverse_transform(model.predict(X_test))"
        else:
            held, predicted = (f"model.predict_proba({rows})[:, 1]" for rows in ("X_train.iloc[held]", "X_test"))
    loop = [
        *reading,
        f"kept, held = train_test_split(np.arange(len(y)), test_size=0.25, random_state=SEED{stratify})",
        "model = make_model().fit(X_train.iloc[kept], y[kept])",
        f"guess = {held}",
        f"scores.append({score})",
        "model = make_model().fit(X_train, y)",
        f"submission[column] = {predicted}",
    ]
    return "\n".join(
        [
            "scores = []",
            "submission = test[ID].copy()",
            "for column in TARGETS:",
            *(f"    {line}" for line in loop),
            'print(f"Final Validation Score: {np.mean(scores):.6f}")',
            'submission.to_csv("submission.csv", index=False)',
        ]
    )
