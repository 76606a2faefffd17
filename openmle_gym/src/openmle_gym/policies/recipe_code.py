"""Renders a recipe as a program: one readable scikit-learn script that keeps the contract of every prompt."""

import json
import re
from collections.abc import Iterable

from openmle_gym.policies.recipe_families import Value, families
from openmle_gym.policies.recipe_grammar import MARKER, SAMPLED_ROWS, Branch, Recipe, Step, needs_calibration
from openmle_gym.policies.recipe_metrics import own_score
from openmle_gym.policies.recipe_prompt import MOST_CATEGORIES, TaskFacts

SECOND_VOCABULARY = {
    "X_train": "features",
    "X_test": "new_features",
    "y": "target",
    "make_model": "build_model",
    "add_features": "derive",
    "strongest": "best_columns",
    "guess": "predicted",
    "numeric": "number_columns",
    "categorical": "category_columns",
}
_WIDTH = 100


def render_program(recipe: Recipe, facts: TaskFacts) -> str:
    """The program's source."""
    return _Renderer(recipe, facts).render()


def describe(recipe: Recipe, facts: TaskFacts) -> str:
    """The recipe in one phrase: model, preparation, what is derived."""
    table = families(facts.kind)
    titles = [table[branch.model.family].title for branch in recipe.ensemble.branches]
    join = {"single": "", "average": "A weighted average of ", "stack": "A stack of "}[recipe.ensemble.how]
    parts = [join + " and ".join(titles)]
    lead = recipe.ensemble.branches[0]
    if lead.scale != "none":
        parts.append(f"on {lead.scale} columns" if lead.scale in ("splines", "bins") else f"with {lead.scale} scaling")
    if facts.has_categories:
        parts.append(
            {"onehot": "one-hot", "ordinal": "ordinal", "target_mean": "target-mean"}[lead.encode] + " encoding"
        )
    if lead.reduce.kind != "none":
        parts.append(f"{lead.reduce.kind} to {lead.reduce.size}")
    parts += [f"derived {step.kind.replace('_', ' ')}" for step in recipe.steps]
    if recipe.target != "none":
        parts.append(f"a {recipe.target} target")
    phrase = ", ".join(parts)
    return phrase[0].upper() + phrase[1:]


class _Renderer:
    def __init__(self, recipe: Recipe, facts: TaskFacts) -> None:
        self.recipe = recipe
        self.facts = facts
        self.regression = facts.kind == "regression"
        self.several = len(facts.label_columns) > 1
        self.wide = facts.feature_count > len(facts.features)
        self.categories = facts.has_categories or self.wide
        self.numbers = bool(facts.numeric_count)
        self.imputes = facts.has_missing or any(step.kind == "group_means" for step in recipe.steps)
        target = facts.target
        coded = (
            target is not None and target.kind == "integer" and target.low == 0 and target.high == target.distinct - 1
        )
        self.encodes_labels = not self.regression and not coded
        self.imported: set[str] = set()

    def use(self, path: str, arguments: Iterable[str] = ()) -> str:
        """A call of the class or function at a path; imports it."""
        self.imported.add(path)
        return _call(path.rpartition(".")[2], arguments)

    def name(self, path: str) -> str:
        """The bare name of what is at a path; imports it."""
        self.imported.add(path)
        return path.rpartition(".")[2]

    def render(self) -> str:
        body = [
            self._reading(),
            self._target() if not self.several else self._first_target(),
            self._columns(),
            self._features(),
            self._preparation(),
            self._model(),
            self._fitting() if not self.several else self._fitting_each(),
        ]
        source = "\n\n".join(part for part in body if part)
        head = f'"""{describe(self.recipe, self.facts)}."""\n{MARKER}{_compact(self.recipe)}\n' + self._imports()
        names = [column.name for column in self.facts.train.columns]
        taken = set(re.findall(r"\w+", " ".join([*self.facts.ids, *self.facts.targets, *names])))
        if self.recipe.style and not taken & SECOND_VOCABULARY.keys():
            source = re.sub(r"\w+", lambda word: SECOND_VOCABULARY.get(word[0], word[0]), source)
        return f"{head}\n{source}\n"

    def _imports(self) -> str:
        lines = ["import os", "import warnings"]
        by_module: dict[str, list[str]] = {}
        for path in self.imported:
            module, _, name = path.rpartition(".")
            by_module.setdefault(module, []).append(name)
        standard = [module for module in by_module if module.split(".")[0] in ("pathlib", "itertools")]
        lines += [f"from {module} import {', '.join(sorted(by_module[module]))}" for module in sorted(standard)]
        lines += ["", "import numpy as np", "import pandas as pd"]
        others = sorted(by_module.keys() - set(standard))
        lines += [f"from {module} import {', '.join(sorted(by_module[module]))}" for module in others]
        return "\n".join([*lines, "", 'warnings.filterwarnings("ignore")'])

    def _reading(self) -> str:
        facts = self.facts
        dtype = "{" + ", ".join(f"{_text(name)}: str" for name in facts.ids) + "}"
        lines = [
            f"SEED = {self.recipe.seed}",
            f'DATA = {self.name("pathlib.Path")}(os.environ["DATA_DIR"])',
            f"ID = {_texts(facts.ids)}",
            f"TARGETS = {_texts(facts.label_columns)}" if self.several else f"TARGET = {_text(facts.label_columns[0])}",
            "",
            f'train = pd.read_csv(DATA / "train.csv", dtype={dtype})',
            f'test = pd.read_csv(DATA / "test.csv", dtype={dtype})',
        ]
        if not self._ids_in_test:
            lines.append(f'sample = pd.read_csv(DATA / "sample_submission.csv", dtype={dtype})')
        if any(c.missing for c in facts.train.columns if c.name in facts.label_columns) or self.wide:
            lines.append(
                f"train = train.dropna(subset={'TARGETS' if self.several else '[TARGET]'}).reset_index(drop=True)"
            )
        if facts.train.truncated:
            lines.append(
                f"train = train.sample(n=min(len(train), {SAMPLED_ROWS:_}), random_state=SEED).reset_index(drop=True)"
            )
        return "\n".join(lines)

    @property
    def _ids_in_test(self) -> bool:
        return not self.facts.test.columns or set(self.facts.ids) <= self.facts.test.names

    def _target(self) -> str:
        if self.encodes_labels:
            label_encoder = self.use("sklearn.preprocessing.LabelEncoder")
            return f"labels = {label_encoder}\ny = labels.fit_transform(train[TARGET])"
        return "y = train[TARGET].to_numpy()"

    def _first_target(self) -> str:
        if not self.recipe.steps:
            return ""
        if self.regression:
            return "y = train[TARGETS[0]].to_numpy()"
        return "y = pd.factorize(train[TARGETS[0]])[0]"

    def _columns(self) -> str:
        known = "*TARGETS" if self.several else "TARGET"
        lines = [
            f"columns = [c for c in test.columns if c in train.columns and c not in [*ID, {known}]]",
            "X_train, X_test = train[columns].copy(), test[columns].copy()",
        ]
        if self.numbers:
            lines.append('numeric = X_train.select_dtypes("number").columns.tolist()')
        if self.categories:
            few = f"X_train[c].nunique() <= {MOST_CATEGORIES}"
            rest = "numeric" if self.numbers else 'X_train.select_dtypes("number").columns'
            lines += [
                f"categorical = [c for c in columns if c not in {rest} and {few}]",
                "for frame in (X_train, X_test):",
                '    frame[categorical] = frame[categorical].fillna("missing").astype(str)',
            ]
        if self.facts.texts:
            lines += [
                f"texts = {_texts(self.facts.texts)}",
                "for frame in (X_train, X_test):",
                '    frame[texts] = frame[texts].fillna("").astype(str)',
            ]
        return "\n".join(lines)

    def _features(self) -> str:
        steps = self.recipe.steps
        if not steps:
            return ""
        lines = []
        ranked = [step.size for step in steps if step.kind not in ("row_stats", "clusters")]
        if ranked:
            rank = self.name("sklearn.feature_selection." + ("f_regression" if self.regression else "f_classif"))
            lines += [
                f"strength = {rank}(X_train[numeric].fillna(X_train[numeric].median()), y)[0]",
                f"strongest = pd.Series(strength, index=numeric).nlargest({max(ranked)}).index.tolist()",
            ]
        lines += [line for step in steps for line in self._before(step)]
        body = [line for step in steps for line in self._derivation(step)]
        return "\n".join(
            [
                *lines,
                "",
                "",
                "def add_features(frame):",
                "    base, extra = frame[numeric], {}",
                *[f"    {line}" for line in body],
                "    return pd.concat([frame, pd.DataFrame(extra, index=frame.index)], axis=1)",
                "",
                "",
                "X_train, X_test = add_features(X_train), add_features(X_test)",
                "numeric = [*numeric, *X_train.columns[len(columns):]]",
            ]
        )

    def _before(self, step: Step) -> list[str]:
        if step.kind == "ratios":
            return ["spread = X_train[numeric].std().replace(0, 1)"]
        if step.kind == "clusters":
            self.imported |= {"sklearn.impute.SimpleImputer", "sklearn.preprocessing.StandardScaler"}
            kmeans = self.use("sklearn.cluster.KMeans", [f"n_clusters={step.size}", "n_init=1", "random_state=SEED"])
            pipeline = self.name("sklearn.pipeline.make_pipeline")
            return [
                f"centres = {pipeline}(SimpleImputer(), StandardScaler(), {kmeans})",
                "centres.fit(X_train[numeric])",
            ]
        if step.kind == "group_means":
            return ["group_means = {c: X_train.groupby(c)[strongest].mean() for c in categorical}"]
        return []

    def _derivation(self, step: Step) -> list[str]:
        top = f"strongest[:{step.size}]"
        if step.kind in ("products", "differences", "ratios"):
            pairs = self.use("itertools.combinations", [top, "2"])
            lines = [f"for a, b in {pairs}:"]
            if step.kind == "products":
                return [*lines, '    extra[f"{a}*{b}"] = base[a] * base[b]']
            if step.kind == "differences":
                return [*lines, '    extra[f"{a}-{b}"] = base[a] - base[b]']
            return [
                *lines,
                '    extra[f"{a}/{b}"] = base[a] / (base[b].abs() + spread[b])',
                '    extra[f"{b}/{a}"] = base[b] / (base[a].abs() + spread[a])',
            ]
        if step.kind == "squares":
            return [f"for c in {top}:", '    extra[f"{c} squared"] = base[c] ** 2']
        if step.kind == "logs":
            return [f"for c in {top}:", '    extra[f"log {c}"] = np.sign(base[c]) * np.log1p(base[c].abs())']
        if step.kind == "row_stats":
            return [
                'extra["row mean"], extra["row std"] = base.mean(axis=1), base.std(axis=1)',
                'extra["row max"], extra["row gaps"] = base.max(axis=1), base.isna().sum(axis=1)',
            ]
        if step.kind == "clusters":
            return [
                "for i, distance in enumerate(centres.transform(base).T):",
                '    extra[f"distance to cluster {i}"] = distance',
            ]
        return [
            "for category, means in group_means.items():",
            f"    for c in {top}:",
            '        extra[f"{c} against {category}"] = base[c] - frame[category].map(means[c])',
        ]

    def _preparation(self) -> str:
        """The function that makes a branch's column transformer."""
        parts, arguments = [], []
        lines = []
        if self.numbers:
            arguments.append("scaler")
            if self.imputes:
                pipeline = self.name("sklearn.pipeline.make_pipeline")
                lines.append(f"    numbers = {pipeline}({self._imputer()}, scaler)")
            parts.append("(numbers, numeric)" if self.imputes else "(scaler, numeric)")
        if self.categories:
            arguments.append("encoder")
            parts.append("(encoder, categorical)")
        if self.facts.texts:
            self.imported.add("sklearn.feature_extraction.text.TfidfVectorizer")
            vectorizer = 'TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 3), max_features=100)'
            parts.append(f"*[({vectorizer}, c) for c in texts]")
        parts.append("sparse_threshold=0")
        transformer = self.use("sklearn.compose.make_column_transformer", parts)
        returned = f"    return {_indent(transformer)}"
        return "\n".join([f"\ndef prepare({', '.join(arguments)}):", *lines, returned, ""])

    def _imputer(self) -> str:
        if self.recipe.fill == "neighbours":
            return self.use("sklearn.impute.KNNImputer", ["n_neighbors=5"])
        if self.recipe.fill == "indicator":
            return self.use("sklearn.impute.SimpleImputer", ['strategy="median"', "add_indicator=True"])
        return self.use("sklearn.impute.SimpleImputer", [f'strategy="{self.recipe.fill}"'])

    def _scaler(self, branch: Branch) -> str:
        at = "sklearn.preprocessing."
        if branch.scale == "none":
            return '"passthrough"'
        if branch.scale in ("splines", "bins"):
            constant = self.use("sklearn.feature_selection.VarianceThreshold")
            bins = ["n_bins=6", 'encode="onehot-dense"', 'strategy="uniform"']
            expand = (
                self.use(at + "SplineTransformer", ["n_knots=5"])
                if branch.scale == "splines"
                else self.use(at + "KBinsDiscretizer", bins)
            )
            return self.use("sklearn.pipeline.make_pipeline", [constant, expand])
        if branch.scale == "quantile":
            return self.use(at + "QuantileTransformer", ['output_distribution="normal"', "random_state=SEED"])
        names = {"standard": "StandardScaler", "robust": "RobustScaler", "minmax": "MinMaxScaler"}
        return self.use(at + names.get(branch.scale, "PowerTransformer"))

    def _encoder(self, branch: Branch) -> str:
        at = "sklearn.preprocessing."
        if branch.encode == "onehot":
            return self.use(at + "OneHotEncoder", ['handle_unknown="ignore"', "sparse_output=False"])
        if branch.encode == "ordinal":
            return self.use(at + "OrdinalEncoder", ['handle_unknown="use_encoded_value"', "unknown_value=-1"])
        kind = ['target_type="continuous"'] if self.regression else []
        return self.use(at + "TargetEncoder", [*kind, "random_state=SEED"])

    def _reducer(self, branch: Branch) -> list[str]:
        size = branch.reduce.size
        if branch.reduce.kind == "pca":
            return [self.use("sklearn.decomposition.PCA", [f"n_components={size}", "random_state=SEED"])]
        if branch.reduce.kind == "nystroem":
            arguments = [f"n_components={size}", "random_state=SEED"]
            return [self.use("sklearn.kernel_approximation.Nystroem", arguments)]
        if branch.reduce.kind == "kbest":
            rank = self.name("sklearn.feature_selection." + ("f_regression" if self.regression else "f_classif"))
            return [self.use("sklearn.feature_selection.SelectKBest", [rank, f"k={size}"])]
        return []

    def _estimator(self, branch: Branch) -> str:
        family = families(self.facts.kind)[branch.model.family]
        settings = [f"{name}={_literal(value)}" for name, value in branch.model.settings.items() if value is not None]
        text = self.use(family.path, [*settings, *([family.fixed] if family.fixed else [])])
        kind = "Regressor" if self.regression else "Classifier"
        if branch.bags > 1:
            bags = [text, f"n_estimators={branch.bags}", "random_state=SEED"]
            text = self.use(f"sklearn.ensemble.Bagging{kind}", bags)
        method = "sigmoid" if needs_calibration(branch, self.recipe, self.facts) else branch.calibrate
        if method != "none":
            ensemble = ["ensemble=False"] if not family.has_probabilities else []
            calibrated = [text, f'method="{method}"', "cv=3", *ensemble]
            text = self.use("sklearn.calibration.CalibratedClassifierCV", calibrated)
        return text

    def _branch(self, branch: Branch) -> str:
        arguments = [self._scaler(branch)] if self.numbers else []
        arguments += [self._encoder(branch)] if self.categories else []
        steps = [_call("prepare", arguments), *self._reducer(branch), self._estimator(branch)]
        return self.use("sklearn.pipeline.make_pipeline", steps)

    def _model(self) -> str:
        ensemble = self.recipe.ensemble
        kind = "Regressor" if self.regression else "Classifier"
        lines = []
        if ensemble.how == "single":
            model = self._branch(ensemble.branches[0])
        else:
            names = []
            for index, branch in enumerate(ensemble.branches, start=1):
                names.append(f"{branch.model.family}_{index}")
                lines.append(f"    {names[-1]} = {_indent(self._branch(branch))}")
            members = "[" + ", ".join(f'("{name}", {name})' for name in names) + "]"
            if ensemble.how == "stack":
                last = "linear_model.RidgeCV" if self.regression else "linear_model.LogisticRegression"
                final = f"final_estimator={self.use('sklearn.' + last)}"
                model = self.use(f"sklearn.ensemble.Stacking{kind}", [members, final, "cv=3"])
            else:
                weights = f"weights=[{', '.join(f'{weight:g}' for weight in ensemble.weights)}]"
                voting = [] if self.regression else ['voting="soft"']
                model = self.use(f"sklearn.ensemble.Voting{kind}", [members, *voting, weights])
        if self.recipe.target != "none":
            model = self._target_transform(model)
        return "\n".join(["def make_model():", *lines, f"    return {_indent(model)}", ""])

    def _target_transform(self, model: str) -> str:
        at, kind = "sklearn.preprocessing.", self.recipe.target
        if kind == "log1p":
            how = ["func=np.log1p", "inverse_func=np.expm1"]
        elif kind == "sqrt":
            how = ["func=np.sqrt", "inverse_func=np.square"]
        elif kind == "standard":
            how = ["transformer=" + self.use(at + "StandardScaler")]
        else:
            normal = ['output_distribution="normal"', "random_state=SEED"]
            how = ["transformer=" + self.use(at + "QuantileTransformer", normal)]
        return self.use("sklearn.compose.TransformedTargetRegressor", [model, *how])

    def _predicted(self, model: str, frame: str) -> str:
        """An expression: what a fitted model says of a frame, as the metric wants it."""
        if self.regression:
            return f"np.clip({model}.predict({frame}), y.min(), y.max())"
        if self.facts.output == "label":
            return f"{model}.predict({frame})"
        both = "" if self.facts.one_column_per_class else "[:, 1]"
        return f"{model}.predict_proba({frame}){both}"

    def _validation(self) -> list[str]:
        score = own_score(self.facts)
        for path in score.imports:
            self.imported.add(path)
        note = [] if score.exact else ["# The task's own metric is not at hand; this one is close to it."]
        if self.recipe.validation == "holdout":
            stratify = [] if self.regression or self.facts.classes > 20 else ["stratify=y"]
            arguments = ["np.arange(len(y))", "test_size=0.25", "random_state=SEED", *stratify]
            return [
                f"kept, held = {self.use('sklearn.model_selection.train_test_split', arguments)}",
                "model = make_model().fit(X_train.iloc[kept], y[kept])",
                f"guess = {self._predicted('model', 'X_train.iloc[held]')}",
                *note,
                f"score = {score.expression.format(truth='y[held]', guess='guess')}",
            ]
        count = self.recipe.validation.removeprefix("cv")
        splitter = "KFold" if self.regression or self.facts.classes > 20 else "StratifiedKFold"
        folds = self.use(f"sklearn.model_selection.{splitter}", [count, "shuffle=True", "random_state=SEED"])
        predict = self.name("sklearn.model_selection.cross_val_predict")
        method = ', method="predict_proba"' if self.facts.output == "probability" else ""
        guess = f"{predict}(make_model(), X_train, y, cv=folds{method})"
        if self.regression:
            guess = f"np.clip({guess}, y.min(), y.max())"
        elif self.facts.output == "probability" and not self.facts.one_column_per_class:
            guess += "[:, 1]"
        return [
            f"folds = {folds}",
            f"guess = {guess}",
            *note,
            f"score = {score.expression.format(truth='y', guess='guess')}",
        ]

    def _start_submission(self) -> str:
        return f"submission = {'test' if self._ids_in_test else 'sample'}[ID].copy()"

    def _fitting(self) -> str:
        predicted = self._predicted("model", "X_test")
        if self.facts.one_column_per_class:
            assign = [
                f"chances = pd.DataFrame({predicted}, columns={'labels.classes_' if self.encodes_labels else 'np.unique(y)'})",
                f"for column in {_texts(self.facts.targets)}:",
                '    match = [c for c in chances if column == str(c) or column.endswith(f"_{c}")]',
                "    submission[column] = chances[match[0]].to_numpy()",
            ]
        elif self.encodes_labels and self.facts.output == "label":
            assign = [f"submission[TARGET] = labels.inverse_transform({predicted})"]
        else:
            assign = [f"submission[TARGET] = {predicted}"]
        return "\n".join(
            [
                *self._validation(),
                'print(f"Final Validation Score: {score:.6f}")',
                "",
                "model = make_model().fit(X_train, y)",
                self._start_submission(),
                *assign,
                'submission.to_csv("submission.csv", index=False)',
            ]
        )

    def _fitting_each(self) -> str:
        predicted = self._predicted("model", "X_test")
        if self.regression:
            reading = ["y = train[column].to_numpy()"]
        else:
            self.imported.add("sklearn.preprocessing.LabelEncoder")
            reading = ["labels = LabelEncoder()", "y = labels.fit_transform(train[column])"]
        if self.facts.output == "label":
            predicted = f"labels.inverse_transform({predicted})"
        loop = [*reading, *self._validation(), "scores.append(score)", "model = make_model().fit(X_train, y)"]
        return "\n".join(
            [
                "scores = []",
                self._start_submission(),
                "for column in TARGETS:",
                *[f"    {line}" for line in loop],
                f"    submission[column] = {predicted}",
                'print(f"Final Validation Score: {np.mean(scores):.6f}")',
                'submission.to_csv("submission.csv", index=False)',
            ]
        )


def _call(name: str, arguments: Iterable[str]) -> str:
    """A call, on one line when it is short."""
    arguments = list(arguments)
    line = f"{name}({', '.join(arguments)})"
    if len(line) <= _WIDTH and "\n" not in line:
        return line
    return f"{name}(\n" + "".join(f"    {_indent(argument)},\n" for argument in arguments) + ")"


def _indent(text: str) -> str:
    return text.replace("\n", "\n    ")


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _texts(values: Iterable[str]) -> str:
    return "[" + ", ".join(map(_text, values)) + "]"


def _literal(value: Value) -> str:
    return _text(value) if isinstance(value, str) else repr(value)


def _compact(recipe: Recipe) -> str:
    return json.dumps(recipe.model_dump(mode="json", exclude_defaults=True), separators=(",", ":"))
