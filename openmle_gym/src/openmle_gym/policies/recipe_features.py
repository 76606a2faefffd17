"""The part of a recipe's program that turns columns into model inputs: derived columns, filling, scaling, encoding."""

from openmle_gym.policies.recipe_grammar import TEXT_COLUMNS, Branch, Fill, Recipe, Step
from openmle_gym.policies.recipe_prompt import TaskFacts
from openmle_gym.policies.recipe_source import Imports, call, indented


def derivations(recipe: Recipe, facts: TaskFacts, imports: Imports) -> str:
    """The function that adds derived columns, what it needs, and its use; empty where there are none."""
    steps = recipe.steps
    if not steps:
        return ""
    lines = []
    ranked = [step.size for step in steps if step.kind not in ("row_stats", "clusters")]
    if ranked:
        rank = imports.name(f"sklearn.feature_selection.{ranking(facts)}")
        lines += [
            f"strength = {rank}(X_train[numeric].fillna(X_train[numeric].median()), y)[0]",
            f"strongest = pd.Series(strength, index=numeric).nlargest({max(ranked)}).index.tolist()",
        ]
    lines += [line for step in steps for line in _before(step, imports)]
    body = [line for step in steps for line in _derivation(step, imports)]
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


def ranking(facts: TaskFacts) -> str:
    """The function of scikit-learn that ranks columns by what each alone tells of the target."""
    return "f_regression" if facts.kind == "regression" else "f_classif"


def _before(step: Step, imports: Imports) -> list[str]:
    if step.kind == "ratios":
        return ["spread = X_train[numeric].std().replace(0, 1)"]
    if step.kind == "clusters":
        fill = imports.call("sklearn.impute.SimpleImputer")
        scale = imports.call("sklearn.preprocessing.StandardScaler")
        kmeans = imports.call("sklearn.cluster.KMeans", [f"n_clusters={step.size}", "n_init=1", "random_state=SEED"])
        return [
            f"centres = {imports.call('sklearn.pipeline.make_pipeline', [fill, scale, kmeans])}",
            "centres.fit(X_train[numeric])",
        ]
    if step.kind == "group_means":
        return ["group_means = {c: X_train.groupby(c)[strongest].mean() for c in categorical}"]
    return []


def _derivation(step: Step, imports: Imports) -> list[str]:
    top = f"strongest[:{step.size}]"
    if step.kind in ("products", "differences", "ratios"):
        loop = f"for a, b in {imports.call('itertools.combinations', [top, '2'])}:"
        if step.kind == "products":
            return [loop, '    extra[f"{a}*{b}"] = base[a] * base[b]']
        if step.kind == "differences":
            return [loop, '    extra[f"{a}-{b}"] = base[a] - base[b]']
        return [
            loop,
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


class Preparation:
    """The function `prepare` of a program, and calls of it for single branches."""

    def __init__(self, recipe: Recipe, facts: TaskFacts, imports: Imports) -> None:
        self._recipe = recipe
        self._facts = facts
        self._imports = imports
        self.numbers = bool(facts.numeric_count)
        """Whether the program has number columns; so for `categories`."""
        self.categories = facts.has_categories or facts.shortened
        self._imputes = facts.has_missing or any(step.kind == "group_means" for step in recipe.steps)

    def function(self) -> str:
        """The function's source."""
        parts, arguments, lines = [], [], []
        if self.numbers:
            arguments.append("scaler")
            if self._imputes:
                pipeline = self._imports.name("sklearn.pipeline.make_pipeline")
                lines.append(f"    numbers = {pipeline}({imputer(self._recipe.fill, self._imports)}, scaler)")
            parts.append("(numbers, numeric)" if self._imputes else "(scaler, numeric)")
        if self.categories:
            arguments.append("encoder")
            parts.append("(encoder, categorical)")
        if self._facts.texts:
            letters = ['analyzer="char_wb"', "ngram_range=(2, 3)", f"max_features={TEXT_COLUMNS}"]
            vectorizer = self._imports.call("sklearn.feature_extraction.text.TfidfVectorizer", letters)
            parts.append(f"*[({vectorizer}, c) for c in texts]")
        transformer = self._imports.call("sklearn.compose.make_column_transformer", [*parts, "sparse_threshold=0"])
        return "\n".join([f"\ndef prepare({', '.join(arguments)}):", *lines, f"    return {indented(transformer)}", ""])

    def call(self, branch: Branch) -> str:
        """The call that prepares a branch's columns."""
        arguments = [scaler(branch, self._imports)] if self.numbers else []
        arguments += [encoder(branch, self._facts, self._imports)] if self.categories else []
        return call("prepare", arguments)


def imputer(fill: Fill, imports: Imports) -> str:
    """What fills the gaps of number columns."""
    if fill == "neighbours":
        return imports.call("sklearn.impute.KNNImputer", ["n_neighbors=5"])
    if fill == "indicator":
        return imports.call("sklearn.impute.SimpleImputer", ['strategy="median"', "add_indicator=True"])
    return imports.call("sklearn.impute.SimpleImputer", [f'strategy="{fill}"'])


def scaler(branch: Branch, imports: Imports) -> str:
    """What scales or expands number columns."""
    at = "sklearn.preprocessing."
    if branch.scale == "none":
        return '"passthrough"'
    if branch.scale in ("splines", "bins"):
        varying = imports.call("sklearn.feature_selection.VarianceThreshold")
        if branch.scale == "splines":
            expand = imports.call(at + "SplineTransformer", ["n_knots=5"])
        else:
            expand = imports.call(at + "KBinsDiscretizer", ["n_bins=6", 'encode="onehot-dense"', 'strategy="uniform"'])
        return imports.call("sklearn.pipeline.make_pipeline", [varying, expand])
    if branch.scale == "quantile":
        normal = ['output_distribution="normal"', "random_state=SEED"]
        return imports.call(at + "QuantileTransformer", normal)
    names = {"standard": "StandardScaler", "robust": "RobustScaler", "minmax": "MinMaxScaler"}
    return imports.call(at + names.get(branch.scale, "PowerTransformer"))


def encoder(branch: Branch, facts: TaskFacts, imports: Imports) -> str:
    """What turns categories into numbers."""
    at = "sklearn.preprocessing."
    if branch.encode == "onehot":
        return imports.call(at + "OneHotEncoder", ['handle_unknown="ignore"', "sparse_output=False"])
    if branch.encode == "ordinal":
        return imports.call(at + "OrdinalEncoder", ['handle_unknown="use_encoded_value"', "unknown_value=-1"])
    kind = ['target_type="continuous"'] if facts.kind == "regression" else []
    return imports.call(at + "TargetEncoder", [*kind, "random_state=SEED"])


def reducer(branch: Branch, facts: TaskFacts, imports: Imports) -> list[str]:
    """The step between preparation and model; none where there is no reduction."""
    size = branch.reduce.size
    if branch.reduce.kind == "pca":
        return [imports.call("sklearn.decomposition.PCA", [f"n_components={size}", "random_state=SEED"])]
    if branch.reduce.kind == "nystroem":
        return [imports.call("sklearn.kernel_approximation.Nystroem", [f"n_components={size}", "random_state=SEED"])]
    if branch.reduce.kind == "kbest":
        rank = imports.name(f"sklearn.feature_selection.{ranking(facts)}")
        return [imports.call("sklearn.feature_selection.SelectKBest", [rank, f"k={size}"])]
    return []
