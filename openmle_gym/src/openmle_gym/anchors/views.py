"""What a baseline is given of a task's inputs: matrices that are made from the public files, once for each view."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import pandas as pd

from openmle_gym.manifest import Columns

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

CHANNEL = r"^(.*?)_?(\d+)$"
"""How a column of a signal is named: its channel and the number of the sample."""
TEXT_TERMS = 3_000


class View(NamedTuple):
    """The inputs of train and test; frames, arrays or sparse matrices."""

    train: Any
    test: Any


@dataclass(slots=True, kw_only=True)
class Inputs:
    """The public tables of a task, without targets."""

    public: Path
    train: pd.DataFrame
    test: pd.DataFrame
    made: dict[str, View] = field(default_factory=dict)

    def view(self, name: str) -> View:
        """A view, made when it is first asked for."""
        if name not in self.made:
            self.made[name] = _VIEWS[name](self)
        return self.made[name]


def read_inputs(public: Path, columns: Columns) -> Inputs:
    """Reads a task's public tables."""
    train, test = (pd.read_csv(public / f"{part}.csv") for part in ("train", "test"))
    features = [column for column in test.columns if column not in columns.id]
    return Inputs(public=public, train=train[features], test=test[features])


def _table(inputs: Inputs) -> View:
    return View(inputs.train, inputs.test)


def _fitted(transformer: Any, train: Any, test: Any) -> View:
    return View(transformer.fit_transform(train), transformer.transform(test))


def _columns(inputs: Inputs, *, scaled: bool = False) -> View:
    """Numbers with gaps filled, and the most frequent categories one-hot."""
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    filled = SimpleImputer(strategy="median", keep_empty_features=True)
    encoder = OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=60, sparse_output=False)
    prepared = make_column_transformer(
        (make_pipeline(filled, StandardScaler()) if scaled else filled, make_column_selector(dtype_include="number")),
        (encoder, make_column_selector(dtype_exclude="number")),
    )
    return _fitted(prepared, inputs.train, inputs.test)


def _text(table: pd.DataFrame) -> pd.Series:
    return table.select_dtypes(exclude="number").fillna("").astype(str).agg(" ".join, axis=1)


def _words(inputs: Inputs) -> View:
    return _term_weights(inputs, ngram_range=(1, 2), min_df=2)


def _letters(inputs: Inputs) -> View:
    return _term_weights(inputs, analyzer="char_wb", ngram_range=(2, 4), min_df=3)


def _term_weights(inputs: Inputs, **terms: Any) -> View:
    """TF-IDF of the most frequent terms. Not by `max_features`, which breaks ties as the processor's sort happens to."""
    from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

    train, test = _text(inputs.train), _text(inputs.test)
    counter = CountVectorizer(**terms)
    counts = cast("csr_matrix", counter.fit_transform(train))
    totals = np.asarray(counts.sum(axis=0)).ravel()
    ranked = np.argsort(-totals, kind="stable")[:TEXT_TERMS]
    vectorizer = TfidfVectorizer(**terms, vocabulary=sorted(counter.get_feature_names_out()[ranked]), sublinear_tf=True)
    return _fitted(vectorizer, train, test)


def _topics(inputs: Inputs) -> View:
    """25 latent dimensions of the letters, and the columns of numbers."""
    from sklearn.decomposition import TruncatedSVD

    latent = _fitted(TruncatedSVD(25, random_state=0), *inputs.view("letters"))
    numbers = [table.select_dtypes("number").to_numpy() for table in (inputs.train, inputs.test)]
    return _scaled(View(*(np.hstack(pair) for pair in zip(latent, numbers, strict=True))))


def _scaled(view: View) -> View:
    from sklearn.preprocessing import StandardScaler

    return _fitted(StandardScaler(), *view)


def _signals(table: pd.DataFrame) -> np.ndarray:
    """[rows, channels, samples] of the columns that are samples of a signal."""
    found = cast("pd.DataFrame", table.columns.to_series().str.extract(CHANNEL)).dropna()
    channels = [table[group.index].to_numpy(float) for _, group in found.groupby(0, sort=False)]
    return np.stack([channel for channel in channels if channel.shape[1] > 1], axis=1)


def _images(inputs: Inputs, table: pd.DataFrame) -> np.ndarray:
    """[rows, height, width] of the images that the rows name."""
    from PIL import Image

    return np.stack([np.asarray(Image.open(inputs.public / name), dtype=float) for name in table["image"]])


def _arrays(inputs: Inputs) -> View:
    """Of either modality: images, or signals as [rows, channels, samples]."""
    if "image" in inputs.train:
        return View(*(_images(inputs, table) for table in (inputs.train, inputs.test)))
    return View(_signals(inputs.train), _signals(inputs.test))


def _from_arrays(inputs: Inputs, make: Callable[[np.ndarray], np.ndarray]) -> View:
    train, test = inputs.view("arrays")
    return _scaled(View(*(make(part).reshape(len(part), -1) for part in (train, test))))


def _components(inputs: Inputs) -> View:
    """Fifteen principal components."""
    from sklearn.decomposition import PCA

    return _scaled(_fitted(PCA(15, random_state=0), *_from_arrays(inputs, lambda arrays: arrays)))


def _gradients(images: np.ndarray) -> np.ndarray:
    """Histograms of the gradients' directions, weighted by their strength, in four quarters of an image."""
    down, right = np.gradient(images, axis=(1, 2))
    strength, angle = np.hypot(down, right), np.arctan2(down, right) % np.pi
    bins = np.minimum((angle / np.pi * 8).astype(int), 7)
    middle = [size // 2 for size in images.shape[1:]]
    quarters = [(slice(None, middle[0]), slice(None, middle[1])), (slice(None, middle[0]), slice(middle[1], None))]
    quarters += [(slice(middle[0], None), right) for _, right in quarters]
    return np.stack(
        [
            (strength[:, rows, columns] * (bins[:, rows, columns] == place)).sum(axis=(1, 2))
            for rows, columns in quarters
            for place in range(8)
        ],
        axis=1,
    )


def _moments(arrays: np.ndarray) -> np.ndarray:
    """Of each row of an image, or each channel of a signal: mean, spread, extremes, and the spread of differences."""
    steps = np.diff(arrays, axis=2)
    parts = [arrays.mean(axis=2), arrays.std(axis=2), arrays.min(axis=2), arrays.max(axis=2), steps.std(axis=2)]
    return np.concatenate(parts, axis=1)


def _spectrum(signals: np.ndarray) -> np.ndarray:
    """The size of each frequency in each channel."""
    return np.abs(np.fft.rfft(signals, axis=2))


_VIEWS: Mapping[str, Callable[[Inputs], View]] = {
    "table": _table,
    "columns": _columns,
    "scaled": lambda inputs: _columns(inputs, scaled=True),
    "words": _words,
    "letters": _letters,
    "topics": _topics,
    "arrays": _arrays,
    "pixels": lambda inputs: _from_arrays(inputs, lambda images: images),
    "components": _components,
    "gradients": lambda inputs: _from_arrays(inputs, _gradients),
    "moments": lambda inputs: _from_arrays(inputs, _moments),
    "spectrum": lambda inputs: _from_arrays(inputs, _spectrum),
}
