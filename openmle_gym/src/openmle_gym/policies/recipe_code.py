"""Renders a recipe as a program: one readable scikit-learn script that keeps the contract of every prompt."""

import json
import re

from openmle_gym.policies.recipe_families import families
from openmle_gym.policies.recipe_features import Preparation, derivations, reducer
from openmle_gym.policies.recipe_grammar import MARKER, SAMPLED_ROWS, Branch, Recipe, needs_calibration
from openmle_gym.policies.recipe_metrics import own_score
from openmle_gym.policies.recipe_prompt import MOST_CATEGORIES, TaskFacts
from openmle_gym.policies.recipe_source import Imports, indented, literal, literals

PICTURES = """

def picture(name):
    # A grey PNG file of 8 bits whose rows are not filtered.
    png = (DATA / name).read_bytes()
    width, height = unpack(">II", png[16:24])
    rows = decompressobj().decompress(png[png.index(b"IDAT") + 4 :])
    return np.frombuffer(rows, dtype=np.uint8).reshape(height, width + 1)[:, 1:].astype(float)


def blocks(names):
    # Brightness and roughness along both sides, in 4 x 4 blocks.
    pixels = np.stack([picture(name) for name in names])
    columns = []
    for layer in (pixels, np.abs(np.diff(pixels, axis=1)), np.abs(np.diff(pixels, axis=2))):
        down, right = (np.linspace(0, size, 5).astype(int)[:-1] for size in layer.shape[1:])
        columns.append(np.add.reduceat(np.add.reduceat(layer, down, axis=1), right, axis=2).reshape(len(layer), -1))
    return np.hstack(columns)

"""
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
        target = facts.target
        coded = (
            target is not None and target.kind == "integer" and target.low == 0 and target.high == target.distinct - 1
        )
        self.encodes_labels = not self.regression and not coded
        self.imports = Imports()
        self.preparation = Preparation(recipe, facts, self.imports)

    def render(self) -> str:
        body = [
            self._reading(),
            self._target() if not self.several else self._first_target(),
            self._columns(),
            derivations(self.recipe, self.facts, self.imports),
            self.preparation.function(),
            self._model(),
            self._fitting() if not self.several else self._fitting_each(),
        ]
        source = "\n\n".join(part for part in body if part)
        head = f'"""{describe(self.recipe, self.facts)}."""\n{MARKER}{compact(self.recipe)}\n' + self.imports.render()
        head += '\n\nwarnings.filterwarnings("ignore")'
        names = [column.name for column in self.facts.train.columns]
        taken = set(re.findall(r"\w+", " ".join([*self.facts.ids, *self.facts.targets, *names])))
        if self.recipe.style and not taken & SECOND_VOCABULARY.keys():
            source = re.sub(r"\w+", lambda word: SECOND_VOCABULARY.get(word[0], word[0]), source)
        return f"{head}\n{source}\n"

    def _reading(self) -> str:
        facts = self.facts
        dtype = "{" + ", ".join(f"{literal(name)}: str" for name in facts.ids) + "}"
        lines = [
            f"SEED = {self.recipe.seed}",
            f'DATA = {self.imports.name("pathlib.Path")}(os.environ["DATA_DIR"])',
            f"ID = {literals(facts.ids)}",
            f"TARGETS = {literals(facts.label_columns)}"
            if self.several
            else f"TARGET = {literal(facts.label_columns[0])}",
            "",
            f'train = pd.read_csv(DATA / "train.csv", dtype={dtype})',
            f'test = pd.read_csv(DATA / "test.csv", dtype={dtype})',
        ]
        if not self._ids_in_test:
            lines.append(f'sample = pd.read_csv(DATA / "sample_submission.csv", dtype={dtype})')
        if any(c.missing for c in facts.train.columns if c.name in facts.label_columns) or self.facts.shortened:
            lines.append(
                f"train = train.dropna(subset={'TARGETS' if self.several else '[TARGET]'}).reset_index(drop=True)"
            )
        if facts.train.truncated:
            lines.append(
                f"train = train.sample(n=min(len(train), {SAMPLED_ROWS:_}), random_state=SEED).reset_index(drop=True)"
            )
        if facts.pictures:
            self.imports.name("struct.unpack")
            self.imports.name("zlib.decompressobj")
            lines.append(PICTURES)
        for name in facts.pictures:
            lines += [
                f"{table} = {table}.join(pd.DataFrame(blocks({table}[{literal(name)}])).add_prefix({literal(name + '_')}))"
                for table in ("train", "test")
            ]
            lines.append(f"train, test = (table.drop(columns={literal(name)}) for table in (train, test))")
        return "\n".join(lines)

    @property
    def _ids_in_test(self) -> bool:
        return not self.facts.test.columns or set(self.facts.ids) <= self.facts.test.names

    def _target(self) -> str:
        if self.encodes_labels:
            label_encoder = self.imports.call("sklearn.preprocessing.LabelEncoder")
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
        if self.preparation.numbers:
            lines.append('numeric = X_train.select_dtypes("number").columns.tolist()')
        if self.preparation.categories:
            few = f"X_train[c].nunique() <= {MOST_CATEGORIES}"
            rest = "numeric" if self.preparation.numbers else 'X_train.select_dtypes("number").columns'
            lines += [
                f"categorical = [c for c in columns if c not in {rest} and {few}]",
                "for frame in (X_train, X_test):",
                '    frame[categorical] = frame[categorical].fillna("missing").astype(str)',
            ]
        if self.facts.texts:
            lines += [
                f"texts = {literals(self.facts.texts)}",
                "for frame in (X_train, X_test):",
                '    frame[texts] = frame[texts].fillna("").astype(str)',
            ]
        return "\n".join(lines)

    def _estimator(self, branch: Branch) -> str:
        family = families(self.facts.kind)[branch.model.family]
        settings = [f"{name}={literal(value)}" for name, value in branch.model.settings.items() if value is not None]
        text = self.imports.call(family.path, [*settings, *([family.fixed] if family.fixed else [])])
        kind = "Regressor" if self.regression else "Classifier"
        if branch.bags > 1:
            bags = [text, f"n_estimators={branch.bags}", "random_state=SEED"]
            text = self.imports.call(f"sklearn.ensemble.Bagging{kind}", bags)
        method = "sigmoid" if needs_calibration(branch, self.recipe, self.facts) else branch.calibrate
        if method != "none":
            ensemble = ["ensemble=False"] if not family.has_probabilities else []
            calibrated = [text, f'method="{method}"', "cv=3", *ensemble]
            text = self.imports.call("sklearn.calibration.CalibratedClassifierCV", calibrated)
        return text

    def _branch(self, branch: Branch) -> str:
        steps = [self.preparation.call(branch), *reducer(branch, self.facts, self.imports), self._estimator(branch)]
        return self.imports.call("sklearn.pipeline.make_pipeline", steps)

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
                lines.append(f"    {names[-1]} = {indented(self._branch(branch))}")
            members = "[" + ", ".join(f'("{name}", {name})' for name in names) + "]"
            if ensemble.how == "stack":
                last = "linear_model.RidgeCV" if self.regression else "linear_model.LogisticRegression"
                final = f"final_estimator={self.imports.call('sklearn.' + last)}"
                model = self.imports.call(f"sklearn.ensemble.Stacking{kind}", [members, final, "cv=3"])
            else:
                weights = f"weights=[{', '.join(f'{weight:g}' for weight in ensemble.weights)}]"
                voting = [] if self.regression else ['voting="soft"']
                model = self.imports.call(f"sklearn.ensemble.Voting{kind}", [members, *voting, weights])
        if self.recipe.target != "none":
            model = self._target_transform(model)
        return "\n".join(["def make_model():", *lines, f"    return {indented(model)}", ""])

    def _target_transform(self, model: str) -> str:
        at, kind = "sklearn.preprocessing.", self.recipe.target
        if kind == "log1p":
            how = ["func=np.log1p", "inverse_func=np.expm1"]
        elif kind == "sqrt":
            how = ["func=np.sqrt", "inverse_func=np.square"]
        elif kind == "standard":
            how = ["transformer=" + self.imports.call(at + "StandardScaler")]
        else:
            normal = ['output_distribution="normal"', "random_state=SEED"]
            how = ["transformer=" + self.imports.call(at + "QuantileTransformer", normal)]
        return self.imports.call("sklearn.compose.TransformedTargetRegressor", [model, *how])

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
            self.imports.name(path)
        note = [] if score.exact else ["# The task's own metric is not at hand; this one is close to it."]
        if self.recipe.validation == "holdout":
            stratify = [] if self.regression or self.facts.classes > 20 else ["stratify=y"]
            arguments = ["np.arange(len(y))", "test_size=0.25", "random_state=SEED", *stratify]
            return [
                f"kept, held = {self.imports.call('sklearn.model_selection.train_test_split', arguments)}",
                "model = make_model().fit(X_train.iloc[kept], y[kept])",
                f"guess = {self._predicted('model', 'X_train.iloc[held]')}",
                *note,
                f"score = {score.expression.format(truth='y[held]', guess='guess')}",
            ]
        count = self.recipe.validation.removeprefix("cv")
        splitter = "KFold" if self.regression or self.facts.classes > 20 else "StratifiedKFold"
        folds = self.imports.call(f"sklearn.model_selection.{splitter}", [count, "shuffle=True", "random_state=SEED"])
        predict = self.imports.name("sklearn.model_selection.cross_val_predict")
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
                f"for column in {literals(self.facts.targets)}:",
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
            self.imports.name("sklearn.preprocessing.LabelEncoder")
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


def compact(recipe: Recipe) -> str:
    """The recipe as a program carries it."""
    return json.dumps(recipe.model_dump(mode="json", exclude_defaults=True), separators=(",", ":"))
