"""A prepared competition of MLE-Bench on disk, as its own tools leave it.

<data>/<id>/prepared/{public,private}/
<checkout>/mlebench/competitions/<id>/{config.yaml,description.md,grade.py,leaderboard.csv,...}
"""

from dataclasses import dataclass
from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from yaml import YAMLError

from openmle_gym.bridges.mle_bench.facts import CompetitionFacts, facts_of
from openmle_gym.contracts import ForeignContract, one_line
from openmle_gym.errors import PackageError
from openmle_gym.leaderboard import read_leaderboard

LFS_POINTER = b"version https://git-lfs"
SAMPLE_NAMES = (
    "sample_submission.csv",
    "sampleSubmission.csv",
    "sample_submission_null.csv",
    "kaggle_sample_submission.csv",
    "randomPredictions.csv",
)


class _Dataset(ForeignContract):
    answers: str
    sample_submission: str


class _Grader(ForeignContract):
    grade_fn: str


class _Config(ForeignContract):
    """`config.yaml`, as far as it is needed."""

    name: str
    dataset: _Dataset
    grader: _Grader


@dataclass(frozen=True, slots=True, kw_only=True)
class Competition:
    """Where the parts of a prepared competition lie."""

    facts: CompetitionFacts
    title: str
    public: Path
    answers: Path
    folder: Path
    """The competition's folder in the checkout."""
    grade_function: str
    """`module:function`."""
    sample_names: tuple[str, ...]
    """What the sample submission may be called among the public files, the likeliest first."""

    @property
    def leaderboard(self) -> Path:
        """The official leaderboard."""
        return self.folder / "leaderboard.csv"


def open_competition(competition: str, *, data: Path, checkout: Path) -> Competition:
    """Finds the parts of a prepared competition.

    Args:
        data: The data folder of mle-bench.
        checkout: A clone of mle-bench with its large files.

    Raises:
        ConfigError: There is no such competition in MLE-Bench.
        PackageError: A part is missing, or is a pointer to a large file that was not fetched.
    """
    facts = facts_of(competition)
    folder = checkout / "mlebench" / "competitions" / competition
    prepared = data / competition / "prepared"
    config = _read_config(folder / "config.yaml")
    for part in ("public", "private"):
        if not (prepared / part).is_dir() or not any((prepared / part).iterdir()):
            raise PackageError(
                f"{prepared / part}: nothing there; run mle-bench's own `prepare -c {competition}` first"
            )
    answers = prepared / "private" / Path(config.dataset.answers).name
    for path in (answers, folder / "leaderboard.csv"):
        if not path.is_file():
            raise PackageError(f"{path}: no such file")
        refuse_pointer(path)
    if answers.suffix != ".csv":
        raise PackageError(f"{answers}: answers in {answers.suffix} files cannot be graded row by row")
    declared = Path(config.dataset.sample_submission).name
    known = (facts.details.sample,) if facts.details else ()
    return Competition(
        facts=facts,
        title=config.name,
        public=prepared / "public",
        answers=answers,
        folder=folder,
        grade_function=config.grader.grade_fn,
        sample_names=tuple(dict.fromkeys((*known, declared, *SAMPLE_NAMES))),
    )


def refuse_pointer(path: Path) -> None:
    """Raises PackageError for a Git-LFS pointer in place of a file."""
    with open(path, "rb") as file:
        if file.read(len(LFS_POINTER)) == LFS_POINTER:
            raise PackageError(f"{path}: is a Git-LFS pointer, not the file itself; run `git lfs pull` in that clone")


def leaderboard_text(competition: Competition) -> str:
    """The official leaderboard as ours, the best first.

    Raises:
        PackageError: It has no scores.
    """
    board = read_leaderboard(competition.leaderboard, higher_is_better=competition.facts.higher_is_better)
    return "rank,score\n" + "".join(f"{rank},{score!r}\n" for rank, score in enumerate(board.scores, start=1))


def _read_config(path: Path) -> _Config:
    if not path.is_file():
        raise PackageError(f"{path}: no such file; give the folder of a clone of mle-bench")
    try:
        return _Config.model_validate(OmegaConf.to_container(OmegaConf.load(path)))
    except (YAMLError, OmegaConfBaseException, ValidationError) as error:
        raise PackageError(f"{path}: cannot be used: {one_line(error)}") from error
