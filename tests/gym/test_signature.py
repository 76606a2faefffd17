"""Reading a program's output."""

import pytest
from openmle_gym.program import parse_reply
from openmle_gym.review import review_program
from openmle_gym.signature import error_message, error_signature, self_reported_score

TRACEBACK = """loading
Traceback (most recent call last):
  File "/box/main.py", line 12, in <module>
    main()
  File "/box/main.py", line 8, in fit
    model.fit(X)
  File "/opt/venv/lib/python3.11/site-packages/sklearn/base.py", line 900, in fit
    raise ValueError("Input X contains NaN.")
ValueError: Input X contains NaN.
"""


def test_the_signature_is_the_error_and_the_programs_own_last_function() -> None:
    assert error_signature(TRACEBACK) == "ValueError@fit"
    assert error_message(TRACEBACK) == "ValueError: Input X contains NaN. (line 8: model.fit(X))"


def test_the_signature_does_not_change_with_the_line() -> None:
    assert error_signature(TRACEBACK.replace("line 8", "line 80")) == "ValueError@fit"


def test_a_chained_error_is_the_last_one() -> None:
    chained = TRACEBACK + (
        "\nDuring handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "/box/main.py", line 14, in <module>\n    x\nKeyError: 1\n'
    )
    assert error_signature(chained) == "KeyError@<module>"


def test_a_syntax_error_has_a_signature_without_a_traceback() -> None:
    log = '  File "/box/main.py", line 3\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'
    assert error_signature(log) == "SyntaxError@<module>"


def test_dotted_errors_lose_their_module() -> None:
    log = TRACEBACK.replace("ValueError: Input", "sklearn.exceptions.NotFittedError: Input")
    assert error_signature(log) == "NotFittedError@fit"


def test_output_without_an_error_has_none() -> None:
    assert error_signature("all good\nError rate: 5%\n") is None


def test_a_signature_has_a_bounded_length() -> None:
    log = 'Traceback (most recent call last):\n  File "/box/main.py", line 3, in ' + "f" * 5000 + "\n" + "E" * 5000
    assert error_signature(log) == "E" * 100 + "@" + "f" * 100


def test_an_empty_log_of_many_lines_takes_no_time_to_read() -> None:
    assert error_signature("\n" * 1_000_000) is None  # quadratic time would be hours


@pytest.mark.parametrize(
    ("log", "score"),
    [
        ("Final Validation Score: 0.5", 0.5),
        ("Final Validation Score: 0.5\nFinal Validation Score: -1e-3\n", -0.001),
        ("Final Validation Score: nan", None),
        ("Final Validation Score:.25", 0.25),
        ("Validation Score: 0.5", None),
        ("Final Validation Score: 0.5\nFinal Validation Score: 1e999", None),
    ],
)
def test_the_last_claimed_score_counts(log: str, score: float | None) -> None:
    assert self_reported_score(log) == score


@pytest.mark.parametrize(
    "source",
    [
        "open('../private/test_answer.csv')",
        "import glob\nglob.glob('/**/private/*', recursive=True)",
        "open('/proc/self/environ')",
        "open(f'{root}/data/private/x.csv')",
    ],
)
def test_a_program_that_goes_for_the_answers_is_refused(source: str) -> None:
    review = review_program(parse_reply(f"```python\n{source}\n```"))
    assert not review.accepted
    assert review.signature == "reads_answers"


@pytest.mark.parametrize(
    "source", ["x = 'private_school'", "import os\nprint(os.environ['DATA_DIR'])", "def f(:\n  pass"]
)
def test_an_honest_program_is_accepted(source: str) -> None:
    assert review_program(parse_reply(f"```python\n{source}\n```")).accepted
