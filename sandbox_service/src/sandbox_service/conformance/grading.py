"""Scores: right where they are due, absent where they are not, whatever the metric does."""

from sandbox_service.conformance.check import CheckFunction, Group, Severity, Skipped, add_check, check, expect
from sandbox_service.conformance.package import A_WORD, DIE, EXIT, HANG, NOT_A_NUMBER, RAISE, TALK
from sandbox_service.conformance.programs import CANARY, SUBMIT
from sandbox_service.conformance.service import Ran, Service


def _expect_score(ran: Ran, score: float) -> None:
    ran.expect_outcome("success")
    expect(ran.score == score, f"expected the score {score}: {ran}")


@check(Group.GRADING)
async def a_perfect_submission(service: Service) -> None:
    """The right answer has an RMSE of exactly 0."""
    _expect_score(await service.run(SUBMIT + "submit()"), 0.0)


@check(Group.GRADING)
async def a_submission_that_is_off_by_three(service: Service) -> None:
    """An answer that is off by 3 everywhere has an RMSE of exactly 3."""
    _expect_score(await service.run(SUBMIT + "submit(lambda x: 2 * x + 4)"), 3.0)


ROWS = SUBMIT + "lines = ['%s,%r' % (name, 2 * x + 1) for name, x in rows()]\nhead = 'id,y'\n"
WRITE = "\nopen('submission.csv', 'w').write('\\n'.join([head, *lines]) + '\\n')\n"
SAME = {
    "rows_in_another_order": ("rows in another order", "lines.reverse()", Severity.MUST),
    "a_byte_order_mark": ("a byte order mark", "head = '\\ufeff' + head", Severity.SHOULD),
    "windows_newlines": (
        "Windows' line ends",
        "head += '\\r'; lines = [line + '\\r' for line in lines]",
        Severity.SHOULD,
    ),
    "an_index_column": (
        "pandas' index column",
        "head = ',' + head; lines = [f'{n},{line}' for n, line in enumerate(lines)]",
        Severity.SHOULD,
    ),
}
REFUSED = {
    "a_prediction_that_is_no_number": ("a NaN among its predictions", "lines[7] = lines[7].split(',')[0] + ',nan'"),
    "an_empty_prediction": ("an empty prediction", "lines[7] = lines[7].split(',')[0] + ','"),
    "an_infinite_prediction": ("an infinite prediction", "lines[7] = lines[7].split(',')[0] + ',inf'"),
    "a_prediction_in_words": ("a word for a number", "lines[7] = lines[7].split(',')[0] + ',high'"),
    "a_missing_row": ("a row too few", "del lines[7]"),
    "a_row_twice": ("a row twice and another missing", "lines[7] = lines[8]"),
    "a_row_too_many": ("a row that was not asked for", "lines.append('999999,1.0')"),
    "wrong_ids": ("ids of its own", "lines = [f'{n},1.0' for n in range(len(lines))]"),
    "a_wrong_column": ("a column of another name", "head = 'id,prediction'"),
    "a_header_alone": ("a header and no rows", "lines = []"),
    "no_header": ("no header", "head = lines.pop(0)"),
    "an_empty_file": ("nothing", "head = ''; lines = []"),
}


def _scores_zero(source: str) -> CheckFunction:
    async def scores(service: Service) -> None:
        _expect_score(await service.run(ROWS + source + WRITE), 0.0)

    return scores


def _is_refused(source: str) -> CheckFunction:
    async def refused(service: Service) -> None:
        ran = await service.run(ROWS + source + WRITE)
        ran.expect_outcome("scoring_failed")
        expect(ran.score is None, f"it was scored: {ran}")

    return refused


for _name, (_what, _source, _severity) in SAME.items():
    add_check(
        _name,
        f"A right submission with {_what} scores the same.",
        _scores_zero(_source),
        group=Group.GRADING,
        severity=_severity,
    )
for _name, (_what, _source) in REFUSED.items():
    add_check(_name, f"A submission with {_what} is refused.", _is_refused(_source), group=Group.GRADING)


@check(Group.GRADING, Severity.SHOULD)
async def a_refusal_names_what_is_wrong(service: Service) -> None:
    """The message about a refused submission names the column or the row."""
    ran = await service.run(ROWS + "head = 'id,prediction'" + WRITE)
    expect("y" in str(ran.result.get("message", "")) and ran.result.get("error_signature"), ran)


ORDERS = {
    "a_metric_that_returns_nan": ("returns NaN", NOT_A_NUMBER),
    "a_metric_that_returns_a_word": ("returns a word", A_WORD),
    "a_metric_that_raises": ("raises", RAISE),
    "a_metric_that_leaves": ("exits without an answer", EXIT),
    "a_metric_that_dies": ("is killed", DIE),
}


def _has_no_score(order: int) -> CheckFunction:
    async def has_none(service: Service) -> None:
        ran = await service.run(SUBMIT + f"submit(lambda x: {order})")
        ran.expect_outcome("scoring_failed")
        expect(ran.score is None, f"it was scored: {ran}")

    return has_none


for _name, (_what, _order) in ORDERS.items():
    add_check(
        _name,
        f"When the metric {_what}, there is no score, and the job has a result.",
        _has_no_score(_order),
        group=Group.GRADING,
    )


@check(Group.GRADING)
async def a_metric_that_talks(service: Service) -> None:
    """What the metric prints, such as hidden answers, reaches nobody who submits."""
    ran = await service.run(SUBMIT + f"submit(lambda x: {TALK})")
    expect(CANARY not in str(ran.view), ran)


@check(Group.GRADING)
async def a_metric_that_hangs(service: Service) -> None:
    """A metric that hangs is ended at the service's own limit, and the job has a result."""
    limit = service.config.metric_timeout_seconds
    if not limit:
        raise Skipped("no metric_timeout_seconds was given")
    ran = await service.run(SUBMIT + f"submit(lambda x: {HANG})", timeout=limit)
    ran.expect_outcome("scoring_failed")
    expect(ran.score is None, ran)


@check(Group.GRADING)
async def a_crash_after_a_good_submission(service: Service) -> None:
    """A program that fails after it wrote a good submission has failed, without a score."""
    ran = await service.run(SUBMIT + "submit()\nraise RuntimeError('too late')")
    ran.expect_outcome("code_execution_error")
    expect(ran.score is None, ran)


@check(Group.GRADING)
async def a_clean_exit_in_the_middle(service: Service) -> None:
    """A program that ends by sys.exit(0) after its submission has succeeded."""
    _expect_score(await service.run(SUBMIT + "submit()\nsys.exit(0)\nraise RuntimeError"), 0.0)


@check(Group.GRADING)
async def an_empty_program(service: Service) -> None:
    """A program of white space alone is code_missing."""
    (await service.run("  \n\n")).expect_outcome("code_missing")


@check(Group.GRADING)
async def a_program_that_does_not_parse(service: Service) -> None:
    """A program with a syntax error is a failure of the program, with the error in its log."""
    ran = await service.run("def fit(:\n")
    ran.expect_outcome("code_execution_error")
    expect("SyntaxError" in ran.log, ran)


@check(Group.GRADING)
async def a_program_with_a_nul(service: Service) -> None:
    """A program with a NUL in it has a result, or is refused at the door."""
    response = await service.send("POST", "/api/v1/jobs", json=service.payload("print(1)\0"))
    if response.status_code < 300:
        await service.ended(response.json()["job_id"])  # interpreters differ in what they make of it
    expect(response.status_code < 500, f"{response.status_code}: {response.text[:300]}")


@check(Group.GRADING)
async def a_long_program_in_many_languages(service: Service) -> None:
    """A program of 300 kB, with text beyond ASCII, runs as it was sent."""
    text = "Ünïcode 😀 中文"
    ran = await service.run(SUBMIT + f"# {'x' * 300_000}\nassert {text!r} == {text!a}\nsubmit()")
    _expect_score(ran, 0.0)


@check(Group.GRADING)
async def several_at_once_do_not_mix(service: Service) -> None:
    """Programs that run side by side each have their own score and log."""
    job_ids = [
        await service.submit(SUBMIT + f"submit(lambda x: 2 * x + 1 + {number})\nprint('number {number} spoke')")
        for number in range(5)
    ]
    for number, job_id in enumerate(job_ids):
        ran = await service.ended(job_id)
        _expect_score(ran, float(number))
        expect(f"number {number} spoke" in ran.log and ran.log.count("spoke") == 1, ran)
