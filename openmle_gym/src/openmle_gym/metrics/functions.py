"""The metrics as functions of the answers and the predictions, two NumPy arrays.

The source of a function, and of the helpers that it names, is copied into the `metric.py` of a package; so they use
nothing but `np` and each other. Definitions are scikit-learn's or scipy's where they have the metric; the tests compare.
Where a score is not defined, a function says in its docstring what it gives; a prediction that is no finite number is
refused.
"""

import numpy as np


def as_labels(values):
    """Labels as text; numbers in their plainest spelling, so that 1 and 1.0 are one label."""
    if values.dtype.kind in "iuf":
        distinct, places = np.unique(values, return_inverse=True)
        return np.array([f"{value:.15g}" for value in distinct.astype(float)])[places.reshape(values.shape)]
    return values.astype(str)


def as_numbers(values):
    """Floats, all finite."""
    numbers = values.astype(float)
    if not np.isfinite(numbers).all():
        raise ValueError("a number is missing or infinite")
    return numbers


def as_positive(y_true, metric):
    """Which answers are the larger of two labels."""
    labels = np.unique(y_true)
    if len(labels) != 2:
        raise ValueError(f"{metric} needs two classes among the answers, got {len(labels)}")
    return y_true == labels[1]


def as_lists(values):
    """The items of each cell, separated by spaces; none in an empty or missing cell."""
    return [[] if value != value else str(value).split() for value in values.tolist()]


def confusion(y_true, y_pred):
    """[labels, labels] counts, answers by predictions, and the labels of either in order."""
    y_true, y_pred = as_labels(y_true), as_labels(y_pred)
    labels, places = np.unique(np.concatenate([y_true, y_pred]), return_inverse=True)
    true, pred = places[: len(y_true)], places[len(y_true) :]
    counts = np.bincount(true * len(labels) + pred, minlength=len(labels) ** 2)
    return counts.reshape(len(labels), len(labels)).astype(float), labels


def accuracy(y_true, y_pred):
    """Share of equal labels."""
    return float(np.mean(as_labels(y_true) == as_labels(y_pred)))


def balanced_accuracy(y_true, y_pred):
    """Mean recall over the classes of the answers."""
    counts, _ = confusion(y_true, y_pred)
    present = counts.sum(axis=1) > 0
    return float(np.mean(counts.diagonal()[present] / counts.sum(axis=1)[present]))


def f1_by_class(counts):
    """F1 of each label of a confusion matrix; 0 without true positives."""
    return 2 * counts.diagonal() / (counts.sum(axis=0) + counts.sum(axis=1))


def f1_macro(y_true, y_pred):
    """Mean F1 over the classes of either array; a class without true positives counts 0."""
    return float(np.mean(f1_by_class(confusion(y_true, y_pred)[0])))


def f1_weighted(y_true, y_pred):
    """F1 averaged over the classes by their share of the answers."""
    counts, _ = confusion(y_true, y_pred)
    return float(np.sum(f1_by_class(counts) * counts.sum(axis=1)) / counts.sum())


def f1_micro(y_true, y_pred):
    """F1 over all decisions at once: with one label for each row, the accuracy."""
    counts, _ = confusion(y_true, y_pred)
    return float(counts.trace() / counts.sum())


def f1_binary(y_true, y_pred):
    """F1 of the larger of two labels; 0 without true positives."""
    positive = as_positive(y_true, "binary F1")
    guessed = as_labels(y_pred) == as_labels(y_true[positive][:1])[0]
    return float(2 * np.sum(positive & guessed) / (np.sum(positive) + np.sum(guessed)))


def mcc(y_true, y_pred):
    """Matthews correlation coefficient, any number of classes; 0 where either array has one label only."""
    counts, _ = confusion(y_true, y_pred)
    total, true, pred = counts.sum(), counts.sum(axis=1), counts.sum(axis=0)
    spread = np.sqrt((total**2 - true @ true) * (total**2 - pred @ pred))
    return float((counts.trace() * total - true @ pred) / spread) if spread > 0 else 0.0


def qwk(y_true, y_pred):
    """Cohen's kappa with quadratic weights over whole-numbered labels; predictions are rounded; 1 where all are equal.

    The quadratic disagreement expected of independent raters is var(a) + var(b) + (mean(a) - mean(b))^2.
    """
    y_true, y_pred = np.rint(as_numbers(y_true)), np.rint(as_numbers(y_pred))
    expected = np.var(y_true) + np.var(y_pred) + (np.mean(y_true) - np.mean(y_pred)) ** 2
    return float(1.0 - np.mean((y_true - y_pred) ** 2) / expected) if expected > 0 else 1.0


def average_ranks(values):
    """[rows] Ranks from 1; equal values share the mean of theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def auc(y_true, y_pred):
    """Area under the ROC curve by ranks, ties counted half; the larger of the two labels is positive."""
    positive = as_positive(y_true, "AUC")
    ranks = average_ranks(as_numbers(y_pred))
    hits, misses = np.sum(positive), np.sum(~positive)
    return float((np.sum(ranks[positive]) - hits * (hits + 1) / 2) / (hits * misses))


def average_precision(y_true, y_pred):
    """Area under the steps of the precision-recall curve; the larger of the two labels is positive."""
    positive = as_positive(y_true, "average precision")
    scores = as_numbers(y_pred)
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(positive[order])
    last = np.append(np.diff(scores[order]) != 0, True)
    hits, seen = hits[last], np.flatnonzero(last) + 1
    return float(np.sum(np.diff(hits, prepend=0) * hits / seen) / hits[-1])


def log_loss(y_true, y_pred):
    """Mean negative log-likelihood of the larger of two labels; probabilities are clipped to [1e-15, 1 - 1e-15].

    Answers of one class only must be numbers, of which 1 is the positive one.
    """
    labels = np.unique(y_true)
    positive = y_true.astype(float) == 1.0 if len(labels) == 1 else as_positive(y_true, "binary log loss")
    probability = np.clip(as_numbers(y_pred), 1e-15, 1 - 1e-15)
    return float(-np.mean(np.where(positive, np.log(probability), np.log(1 - probability))))


def multiclass_log_loss(y_true, y_pred):
    """Mean negative log-likelihood over one column for each class, the answers 1 in one of them and 0 in the others.

    Probabilities are clipped to [1e-15, 1 - 1e-15] and scaled to a sum of 1 in each row.
    """
    y_true = as_numbers(y_true)
    if y_true.shape[1] < 2 or not (np.isin(y_true, (0.0, 1.0)).all() and (y_true.sum(axis=1) == 1).all()):
        raise ValueError("multi-class log loss needs one column for each class, with a single 1 in each row of answers")
    probability = np.clip(as_numbers(y_pred), 1e-15, 1 - 1e-15)
    probability = probability / probability.sum(axis=1, keepdims=True)
    return float(-np.mean(np.sum(y_true * np.log(probability), axis=1)))


def brier(y_true, y_pred):
    """Mean squared difference between the probability of the larger of two labels and whether it was so."""
    return float(np.mean((as_positive(y_true, "Brier score") - as_numbers(y_pred)) ** 2))


def rmse(y_true, y_pred):
    """Root of the mean squared error."""
    return float(np.sqrt(np.mean((as_numbers(y_true) - as_numbers(y_pred)) ** 2)))


def rmsle(y_true, y_pred):
    """Root mean squared error of log(1 + value); predictions below 0 count as 0."""
    y_true, y_pred = as_numbers(y_true), np.maximum(as_numbers(y_pred), 0.0)
    if (y_true < 0).any():
        raise ValueError("RMSLE needs answers of at least 0")
    return float(np.sqrt(np.mean((np.log1p(y_true) - np.log1p(y_pred)) ** 2)))


def mae(y_true, y_pred):
    """Mean absolute error."""
    return float(np.mean(np.abs(as_numbers(y_true) - as_numbers(y_pred))))


def median_ae(y_true, y_pred):
    """Median absolute error."""
    return float(np.median(np.abs(as_numbers(y_true) - as_numbers(y_pred))))


def mape(y_true, y_pred):
    """Mean absolute error relative to the answer, which counts as at least the smallest float; 1 is 100 %."""
    y_true, y_pred = as_numbers(y_true), as_numbers(y_pred)
    return float(np.mean(np.abs(y_true - y_pred) / np.maximum(np.abs(y_true), np.finfo(float).eps)))


def smape(y_true, y_pred):
    """Mean of |error| / ((|answer| + |prediction|) / 2), from 0 to 2; 0 where both are 0."""
    y_true, y_pred = as_numbers(y_true), as_numbers(y_pred)
    scale = (np.abs(y_true) + np.abs(y_pred)) / 2
    return float(np.mean(np.abs(y_true - y_pred) / np.where(scale > 0, scale, 1.0)))


def pinball(y_true, y_pred, quantile):
    """Mean pinball loss: an answer above the prediction costs `quantile` of the gap, one below it the rest."""
    gap = as_numbers(y_true) - as_numbers(y_pred)
    return float(np.mean(np.maximum(quantile * gap, (quantile - 1) * gap)))


def r2(y_true, y_pred):
    """Coefficient of determination."""
    y_true, y_pred = as_numbers(y_true), as_numbers(y_pred)
    spread = np.sum((y_true - np.mean(y_true)) ** 2)
    if spread == 0:
        raise ValueError("R2 needs answers that are not all equal")
    return float(1 - np.sum((y_true - y_pred) ** 2) / spread)


def pearson(y_true, y_pred):
    """Pearson's correlation; 0 for predictions that are all equal."""
    y_true, y_pred = as_numbers(y_true), as_numbers(y_pred)
    if np.ptp(y_true) == 0:
        raise ValueError("a correlation needs answers that are not all equal")
    if np.ptp(y_pred) == 0:
        return 0.0
    true, pred = y_true - np.mean(y_true), y_pred - np.mean(y_pred)
    true, pred = true / np.max(np.abs(true)), pred / np.max(np.abs(pred))
    return float(np.clip(np.sum(true * pred) / np.sqrt(np.sum(true * true) * np.sum(pred * pred)), -1.0, 1.0))


def spearman(y_true, y_pred):
    """Pearson's correlation of the ranks, ties sharing theirs; 0 for predictions that are all equal."""
    return pearson(average_ranks(as_numbers(y_true)), average_ranks(as_numbers(y_pred)))


def map_at_k(y_true, y_pred, k):
    """Mean average precision of the first k items of each prediction; an item counts once.

    Rows whose answer names no item are left out.
    """
    scores = []
    for wanted, guesses in zip(as_lists(y_true), as_lists(y_pred), strict=True):
        distinct = list(dict.fromkeys(guesses[:k]))
        places = [guesses.index(guess) + 1 for guess in distinct if guess in wanted]
        if wanted:
            scores.append(sum((n + 1) / place for n, place in enumerate(places)) / min(len(set(wanted)), k))
    if not scores:
        raise ValueError("no answer names an item")
    return float(np.mean(scores))


def ndcg_at_k(y_true, y_pred, k):
    """Mean normalised discounted cumulative gain of the first k items; an item of the answer is worth 1, and once.

    Rows whose answer names no item are left out.
    """
    scores = []
    for wanted, guesses in zip(as_lists(y_true), as_lists(y_pred), strict=True):
        places = [guesses.index(guess) for guess in dict.fromkeys(guesses[:k]) if guess in wanted]
        best = np.sum(1 / np.log2(np.arange(min(len(set(wanted)), k)) + 2))
        if wanted:
            scores.append(np.sum(1 / np.log2(np.array(places, dtype=float) + 2)) / best)
    if not scores:
        raise ValueError("no answer names an item")
    return float(np.mean(scores))


def token_accuracy(y_true, y_pred):
    """Share of equal tokens, place by place, of all the tokens of the longer text of each row; 1 without any."""
    equal = total = 0
    for true, pred in zip(as_lists(y_true), as_lists(y_pred), strict=True):
        equal += sum(a == b for a, b in zip(true, pred, strict=False))
        total += max(len(true), len(pred))
    return float(equal / total) if total else 1.0


def as_pixels(values):
    """The pixels of each mask, in order: run-length encoded as start and length, start and length, ..."""
    masks = []
    for words in as_lists(values):
        if len(words) % 2 or not all(word.isdecimal() for word in words):
            raise ValueError(f"not a run-length encoded mask: {' '.join(words)[:40]!r}")
        runs = np.array(words, dtype=np.int64).reshape(-1, 2)
        masks.append(np.unique(np.concatenate([np.arange(0), *(np.arange(a, a + n) for a, n in runs)])))
    return masks


def dice(y_true, y_pred):
    """Mean over rows of 2 |A and B| / (|A| + |B|) of two run-length encoded masks; 1 where both are empty."""
    scores = []
    for true, pred in zip(as_pixels(y_true), as_pixels(y_pred), strict=True):
        both, sizes = len(np.intersect1d(true, pred, assume_unique=True)), len(true) + len(pred)
        scores.append(2 * both / sizes if sizes else 1.0)
    return float(np.mean(scores))


def iou(y_true, y_pred):
    """Mean over rows of |A and B| / |A or B| of two run-length encoded masks; 1 where both are empty."""
    scores = []
    for true, pred in zip(as_pixels(y_true), as_pixels(y_pred), strict=True):
        both = len(np.intersect1d(true, pred, assume_unique=True))
        union = len(true) + len(pred) - both
        scores.append(both / union if union else 1.0)
    return float(np.mean(scores))
