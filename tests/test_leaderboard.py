from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openmle_gym.errors import PackageError
from openmle_gym.leaderboard import Leaderboard, Medal, medal_positions, read_leaderboard

FIVE = Leaderboard(scores=(0.9, 0.8, 0.8, 0.7, 0.6), higher_is_better=True)
LOW = Leaderboard(scores=(1.0, 2.0, 2.0, 3.0), higher_is_better=False)


@pytest.mark.parametrize(
    ("teams", "positions"),
    [
        (1, (1, 1, 1)),
        (4, (1, 1, 1)),
        (50, (5, 10, 20)),
        (79, (7, 15, 31)),
        (99, (9, 19, 39)),
        (100, (10, 20, 40)),
        (129, (10, 25, 51)),
        (161, (10, 32, 64)),
        (162, (10, 32, 64)),
        (249, (10, 49, 99)),
        (250, (10, 50, 100)),
        (260, (10, 50, 100)),
        (462, (10, 50, 100)),
        (500, (11, 50, 100)),
        (878, (11, 50, 100)),
        (999, (11, 50, 100)),
        (1000, (12, 50, 100)),
        (1149, (12, 57, 114)),
        (1151, (12, 57, 115)),
        (1188, (12, 59, 118)),
        (1221, (12, 61, 122)),
        (1241, (12, 62, 124)),
        (1280, (12, 64, 128)),
        (1314, (12, 65, 131)),
        (1317, (12, 65, 131)),
        (1483, (12, 74, 148)),
        (1547, (13, 77, 154)),
        (1595, (13, 79, 159)),
        (2928, (15, 146, 292)),
        (4539, (19, 226, 453)),
    ],
)
def test_medal_positions_follow_the_number_of_teams(teams: int, positions: tuple[int, int, int]) -> None:
    assert medal_positions(teams) == positions


def test_no_teams_have_no_medals() -> None:
    with pytest.raises(ValueError, match="at least one score, got 0"):
        medal_positions(0)
    with pytest.raises(ValueError, match="at least one score"):
        Leaderboard(scores=(), higher_is_better=True)


def test_a_rank_is_one_more_than_the_teams_that_are_strictly_better() -> None:
    assert [FIVE.rank(score) for score in (1.0, 0.9, 0.8, 0.75, 0.6, 0.0)] == [1, 1, 2, 4, 5, 6]
    assert [LOW.rank(score) for score in (0.5, 1.0, 2.0, 9.0)] == [1, 1, 2, 5]


def test_the_rank_fraction_of_a_score_below_all_is_one() -> None:
    assert [FIVE.rank_fraction(score) for score in (1.0, 0.8, 0.6, 0.0)] == [0.2, 0.4, 1.0, 1.0]


def test_only_strictly_worse_teams_are_beaten() -> None:
    assert [FIVE.fraction_beaten(score) for score in (1.0, 0.8, 0.0)] == [1.0, 0.4, 0.0]
    assert [LOW.fraction_beaten(score) for score in (0.5, 2.0, 3.0)] == [1.0, 0.25, 0.0]


def test_scores_are_sorted_by_the_direction_that_is_told() -> None:
    assert Leaderboard(scores=(1.0, 3.0, 2.0), higher_is_better=True).scores == (3.0, 2.0, 1.0)
    assert Leaderboard(scores=(1.0, 3.0, 2.0), higher_is_better=False).scores == (1.0, 2.0, 3.0)


def test_a_medal_is_won_by_reaching_its_threshold() -> None:
    board = Leaderboard(scores=tuple(float(n) for n in range(10, 0, -1)), higher_is_better=True)
    assert board.medal_thresholds() == (10.0, 9.0, 7.0)
    assert [board.medal(score) for score in (10.5, 10.0, 9.5, 9.0, 7.0, 6.9)] == [
        Medal.GOLD,
        Medal.GOLD,
        Medal.SILVER,
        Medal.SILVER,
        Medal.BRONZE,
        None,
    ]


def test_a_low_score_wins_where_lower_is_better() -> None:
    board = Leaderboard(scores=tuple(float(n) for n in range(1, 11)), higher_is_better=False)
    assert [board.medal(score) for score in (0.0, 2.0, 4.0, 4.1)] == [Medal.GOLD, Medal.SILVER, Medal.BRONZE, None]


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_score_that_is_not_finite_has_no_place(score: float) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        FIVE.rank(score)
    with pytest.raises(ValueError, match="must be finite"):
        Leaderboard(scores=(1.0, score), higher_is_better=True)


SCORES = st.floats(-100, 100, allow_nan=False)


@given(st.lists(SCORES, min_size=1, max_size=300), SCORES, st.booleans())
def test_better_equal_and_beaten_teams_are_all_teams(scores: list[float], score: float, higher: bool) -> None:
    board = Leaderboard(scores=tuple(scores), higher_is_better=higher)
    equal = scores.count(score)
    assert board.rank(score) - 1 + equal + round(board.fraction_beaten(score) * len(scores)) == len(scores)
    assert board.medal(board.scores[0]) is Medal.GOLD


def test_a_leaderboard_is_read_whatever_its_header_looks_like(tmp_path: Path) -> None:
    path = tmp_path / "leaderboard.csv"
    path.write_text("scoreNullable,TeamId, Score \nx,1,0.5\nx,2,0.75\nx,3,\nx,4,n/a\nx,5,inf\n", encoding="utf-8-sig")
    assert read_leaderboard(path, higher_is_better=True).scores == (0.75, 0.5)
    assert read_leaderboard(path, higher_is_better=False).scores == (0.5, 0.75)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "no columns 'score'"),
        ("score\nx\n", "row 1: score 'x' is no number"),
        ('team,score\na,0.5\nb,-\nc,"0,85"\n', "row 3: score '0,85' is no number"),
        ("team,score\na,0.5\nSmith, J.,0.9\n", "row 2 has 3 cells where the header has 2"),
        ("score,Score\n1,2\n", "2 columns 'score'"),
        ("team;score\na;0.5\n", "no columns 'score'"),
        ("score\n", "no row with a score"),
        ("", "is empty"),
    ],
)
def test_a_file_without_scores_is_a_package_error(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "leaderboard.csv"
    path.write_text(text)
    with pytest.raises(PackageError, match=words) as caught:
        read_leaderboard(path, higher_is_better=True)
    assert str(path) in str(caught.value)
