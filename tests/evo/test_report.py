"""The report's page and summary: read from real run directories, and tried out in a real browser where there is one."""

import base64
import hashlib
import io
import json
import math
import random
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, open_browser
from evo.synthetic_run import SyntheticRun
from openmle_evo.budget import ModelCall
from openmle_evo.reading import read_run
from openmle_evo.report import print_summary, write_report
from openmle_evo.report.payload import embed, fit, page_payload
from openmle_evo.report.summary import calls_line
from openmle_evo.run import RunDirectory
from openmle_gym.chat import Usage
from openmle_gym.errors import StoreError
from rich.console import Console

HOSTILE = (
    "</script><img src=x onerror=\"window.hacked='program'\"><!--<script>\n"
    "hidden = 'a\u202eb'  # \u2028 </div>&lt;b&gt;\nprint(1)\n"
)
HOSTILE_LOG = "\x1b[31m</pre></script><script>window.hacked='log'</script>\nFinal Validation Score: 1\n"


def _data(page: Path) -> dict[str, Any]:
    """The JSON inside a page, read as a browser reads it: up to the first end of a script element."""
    found = re.search(r'<script type="application/json" id="run-data">(.*?)</script', page.read_text(), re.DOTALL)
    assert found

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(found[1], parse_constant=refuse)


def _summary(run: Path) -> str:
    stream = io.StringIO()
    print_summary(run, Console(file=stream, width=100))
    return stream.getvalue()


def _snapshot(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SyntheticRun(attempts=40).build(tmp_path_factory.mktemp("finished") / "run")


def test_a_report_stands_in_the_run_unless_told_otherwise(finished: Path, tmp_path: Path) -> None:
    assert write_report(finished) == finished / "report.html"
    (tmp_path / "x.html").write_text("an old report")
    assert write_report(finished, tmp_path / "x.html") == tmp_path / "x.html"
    assert (tmp_path / "x.html").read_text().startswith("<!doctype html>")
    assert [path.name for path in tmp_path.iterdir()] == ["x.html"]
    (finished / "report.html").unlink()


def test_a_report_changes_no_file_of_a_finished_run(finished: Path, tmp_path: Path) -> None:
    before = _snapshot(finished)
    write_report(finished, tmp_path / "report.html")
    _summary(finished)
    assert _snapshot(finished) == before


def test_a_report_is_made_of_a_run_that_another_process_is_running(tmp_path: Path) -> None:
    """Two cards are in the write-ahead log only, one of them with its pending row still there, as after a kill."""
    path = SyntheticRun(attempts=6, under_way=3, finished=False).build(tmp_path / "run")
    running = RunDirectory.resume(path)
    card = running.cards()[0]
    running.judged(card.model_copy(update={"attempt": 6}))
    running.store.append(card.model_copy(update={"attempt": 7}))
    data = _data(write_report(path))
    assert [attempt["attempt"] for attempt in data["attempts"]] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert (data["under_way"], data["final"]) == (1, None)
    running.judged(card.model_copy(update={"attempt": 8}))
    running.close()


def test_a_run_whose_store_is_not_made_yet_has_no_attempts(tmp_path: Path) -> None:
    path = SyntheticRun(attempts=0).build(tmp_path / "run")
    for file in path.glob("store.sqlite*"):
        file.unlink()
    assert _data(write_report(path))["attempts"] == []
    assert not (path / "store.sqlite").exists()


def test_a_folder_without_a_run_and_a_damaged_store_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no run"):
        write_report(tmp_path)
    path = SyntheticRun(attempts=1).build(tmp_path / "run")
    (path / "store.sqlite").write_bytes(b"not a database, and long enough to be looked at" * 100)
    with pytest.raises(StoreError, match=r"store\.sqlite"):
        write_report(path)
    assert not (path / "report.html").exists()


@pytest.mark.parametrize(
    ("higher_is_better", "ranks", "bests", "gain"),
    [(True, [2, None, 1, 3, 3], [0, 2], 1.0), (False, [3, None, 4, 1, 1], [0, 3], -1.0)],
)
def test_rank_best_and_gain_follow_the_metrics_direction(
    tmp_path: Path, higher_is_better: bool, ranks: list[int], bests: list[int], gain: float
) -> None:
    scores = {0: 5.0, 1: None, 2: 6.0, 3: 4.0, 4: 4.0}
    path = SyntheticRun(attempts=5, score_of=scores, higher_is_better=higher_is_better).build(tmp_path / "run")
    data = _data(write_report(path))
    assert [attempt["rank"] for attempt in data["attempts"]] == ranks
    assert [attempt["attempt"] for attempt in data["attempts"] if attempt["new_best"]] == bests
    assert data["best"] == bests[-1]
    facts = read_run(path)
    child = facts.cards[2].model_copy(update={"parents": (1, 0)})
    changed = page_payload(replace(facts, cards=(*facts.cards[:2], child)))
    assert changed["attempts"][2]["gain"] == gain


def test_the_page_carries_the_cards_facts(finished: Path, tmp_path: Path) -> None:
    data = _data(write_report(finished, tmp_path / "report.html"))
    cards = read_run(finished).cards
    for card, attempt in zip(cards, data["attempts"], strict=True):
        assert (attempt["source"], attempt["plan"], attempt["log_head"]) == (card.source, card.plan, card.log_head)
        assert attempt["selection"]["reason"] == card.selection.reason
        chances = [candidate.probability for candidate in card.selection.candidates]
        assert [row["probability"] for row in attempt["selection"]["candidates"]] == pytest.approx(chances, rel=1e-5)
    assert data["seconds"]["sandbox"] == pytest.approx(sum(card.sandbox_seconds for card in cards))
    assert data["seconds"]["wall"] == 6.5 * 40 + 20
    assert sum(row["attempts"] for row in data["outcomes"]) == sum(row["attempts"] for row in data["operators"]) == 40
    failed = [card.attempt for card in cards if card.error_signature]
    assert sorted(number for row in data["errors"] for number in row["attempts"]) == failed


def test_the_page_loads_nothing_and_runs_only_its_own_script(finished: Path, tmp_path: Path) -> None:
    page = write_report(finished, tmp_path / "report.html").read_text()
    assert not re.search(r"https?://|//[a-z]|@import|url\(|<link|<iframe|<base", page.replace("/* ", ""))
    assert not re.search(r"\s(src|srcset|action|on[a-z]+)\s*=\s*[\"']", page)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy
    directives = dict(part.strip().split(" ", 1) for part in policy[1].split(";"))
    assert directives["default-src"] == "'none'"
    for name, pattern in (("script-src", r"<script>(.*?)</script>"), ("style-src", r"<style>(.*?)</style>")):
        (text,) = re.findall(pattern, page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert directives[name] == f"'sha256-{digest}'"


def test_hostile_text_is_data_and_not_markup(tmp_path: Path) -> None:
    run = SyntheticRun(attempts=3, source_of={1: HOSTILE}, log_of={1: HOSTILE_LOG}, title="</title><b>T & T")
    page = write_report(run.build(tmp_path / "run"))
    text = page.read_text()
    assert text.count("</script") == 2
    assert "<!--" not in text
    assert "<img" not in text
    assert "\u2028" not in text
    assert "<title>&lt;/title&gt;&lt;b&gt;T &amp; T: search run" in text
    attempt = _data(page)["attempts"][1]
    assert (attempt["source"], attempt["log_head"]) == (HOSTILE, HOSTILE_LOG)


def test_what_is_not_a_number_is_refused_rather_than_embedded() -> None:
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="JSON"):
            embed({"score": value})


def test_an_ordinary_run_is_not_shortened(finished: Path) -> None:
    payload = page_payload(read_run(finished))
    assert (payload["shortened_logs"], payload["shortened_programs"]) == (0, 0)


def test_long_logs_keep_their_beginning_and_their_end(finished: Path) -> None:
    """300 logs of 16,000 characters: 4.8 million, where 3.5 are allowed; halving to 2 x 4,000 makes them 2.4."""
    facts = read_run(finished)
    log = "start\n" + "." * 15_989 + "\nend\n"
    card = facts.cards[0].model_copy(update={"plan": "", "message": "", "log_head": log, "log_tail": ""})
    cards = tuple(card.model_copy(update={"attempt": number}) for number in range(300))
    assert fit(cards).log == 4_000
    payload = page_payload(replace(facts, cards=cards))
    attempt = payload["attempts"][0]
    assert attempt["log_head"] == log[:4_000]
    assert attempt["log_tail"] == log[-4_000:]
    assert attempt["log_cut"] == 8_000
    assert payload["shortened_logs"] == 300


@pytest.mark.slow
def test_a_page_of_800_attempts_stays_small(tmp_path: Path) -> None:
    run = SyntheticRun(attempts=800, log_characters=20_000, program_lines=100, under_way=1).build(tmp_path / "run")
    page = write_report(run)
    assert page.stat().st_size < 15_000_000
    assert _data(page)["shortened_logs"] == 800


def test_calls_are_told_by_what_they_were_for() -> None:
    used = Usage(prompt_tokens=900, completion_tokens=200)
    facts = {"attempt": 0, "seconds": 1.0, "finished_at": "2026-01-01T00:00:00Z"}
    calls = [ModelCall(purpose="draft", usage=used, **facts), ModelCall(purpose="note", usage=used, **facts)]  # pyright: ignore
    calls.append(ModelCall(purpose="note", failure="down", **facts))  # pyright: ignore
    assert calls_line(calls) == "1 draft (1,100 tokens), 2 note (1,100 tokens, 1 failed)"


def test_the_summary_tells_progress_operators_test_and_spending(tmp_path: Path) -> None:
    scores = {number: 100.0 - number if number != 5 else None for number in range(30)}
    path = SyntheticRun(attempts=31, score_of=scores | {30: 200.0}).build(tmp_path / "run")
    text = _summary(path)
    assert "Rent of flats in three districts: RMSE, lower is better" in text
    progress = text.partition("Operators")[0]
    assert len(re.findall(r"│ +\d+ │ +\d+ │", progress)) == 10
    assert re.search(r"│ +1 │ +0 │ draft +│ +100\.000 │", progress)
    assert re.search(r"│ +30 │ +29 │ \w+ +│ +71\.0000 │", progress)
    assert re.search(r"│ +31 │ +│ no better one since │ 71\.0000 │", progress)
    assert re.search(r"│ draft +│ +\d+ │ +\d+ │ +\d+ │", text)
    assert re.search(r"Calls +\d+ draft \([\d,]+ tokens\), ", text)
    assert "Test        72.4200 by attempt 29; sample submission 412.500" in text
    assert "rank 3 of 12 entries, beats 75%, silver medal (machine-made leaderboard)" in text
    assert "221.5 wall" in text
    assert "completion (estimated)" in text
    assert re.search(r"Outcomes +30 success, 1 \w+", text)
    assert "Report      not made yet" in text
    assert f"Report      {write_report(path)}" in _summary(path).replace("\n", "")


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (SyntheticRun(attempts=0, finished=False), ["no attempt has finished yet", "not graded on test yet"]),
        (SyntheticRun(attempts=2, score_of={0: None, 1: None}), ["no valid program", "not graded on test yet"]),
        (SyntheticRun(attempts=2, score_of={0: 1.0, 1: 2.0}, leaderboard=False), ["Leaderboard no leaderboard"]),
        (
            SyntheticRun(attempts=1, score_of={0: 1.0}, test_failed=True),
            ["attempt 0 failed when it was graded on test: MemoryError", "no test score to place"],
        ),
    ],
)
def test_the_summary_says_what_is_missing_in_words(tmp_path: Path, run: SyntheticRun, words: list[str]) -> None:
    text = _summary(run.build(tmp_path / "run"))
    assert [word for word in words if word not in text] == []


def test_a_title_cannot_command_the_terminal(tmp_path: Path) -> None:
    title = "\x1b[2J[bold]plain[/bold]"
    text = _summary(SyntheticRun(attempts=1, title=title).build(tmp_path / "run"))
    assert text.startswith(" [2J[bold]plain[/bold]: RMSE")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(scheme: str) -> None:
    """WCAG 2.2: at least 4.5 to 1 for text, 3 to 1 for what is drawn."""
    css = files("openmle_evo.report").joinpath("page", "style.css").read_text()
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for block in re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    )
    colours = light | dark if scheme == "dark" else light
    deep, pale = ("on-light", "on-dark") if scheme == "dark" else ("on-dark", "on-light")
    text = [
        (name, ground)
        for name in ("ink", "quiet", "link", "good", "bad", "warn")
        for ground in ("paper", "surface", "faint")
    ]
    text += [(name, "faint") for name in ("string", "keyword", "comment", "digit")]
    text += [("ink", "added"), ("ink", "removed"), (deep, "fifth-0"), (deep, "fifth-1")]
    text += [(pale, f"fifth-{place}") for place in (2, 3, 4)]
    drawn = [(name, "surface") for name in ("draft", "improve", "debug", "crossover", "best", "fifth-edge")]
    for pairs, least in ((text, 4.5), (drawn, 3.0)):
        for one, other in pairs:
            assert _contrast(colours[one], colours[other]) >= least, f"{one} on {other}"


def _contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def page(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(finished, tmp_path_factory.mktemp("page") / "report.html")


def test_a_deep_link_opens_the_attempt_with_its_program_as_text(browser: Browser, page: Path, finished: Path) -> None:
    card = read_run(finished).cards[7]
    browser.open(page.as_uri() + "#attempt-7")
    assert browser.run("document.querySelector('#detail-title').textContent") == "Attempt 7"
    lines = browser.run("[...document.querySelectorAll('#detail .code:not(.diff) code')].map(line => line.textContent)")
    assert [line.rstrip("\n") for line in lines] == card.source.rstrip("\n").split("\n")
    assert "Drawn by score, gain and novelty, at temperature 0.35." in browser.run("byId('detail').textContent")
    rows = browser.run("[...document.querySelectorAll('#detail tbody tr')].map(row => row.cells[0].textContent)")
    assert [row for row in rows if "chosen" in row] == [f"{number} chosen" for number in card.parents]
    assert browser.complaints() == []


def test_hostile_programs_and_logs_do_nothing_in_the_browser(browser: Browser, tmp_path: Path) -> None:
    run = SyntheticRun(
        attempts=8,
        source_of=dict.fromkeys(range(8), HOSTILE),
        log_of=dict.fromkeys(range(8), HOSTILE_LOG),
        title="<img src=x onerror=\"window.hacked='title'\">",
    ).build(tmp_path / "run")
    browser.open(write_report(run).as_uri() + "#attempt-7")
    text = browser.run("byId('detail').textContent")
    assert "</script><img src=x onerror=\"window.hacked='program'\">" in text
    assert "<script>window.hacked='log'</script>" in text
    assert "'a\u27e8U+202E\u27e9b'" in text
    assert browser.run("document.querySelector('h1').textContent").startswith("<img src=x")
    assert browser.run("[document.images.length, document.scripts.length, window.hacked ?? null]") == [0, 2, None]
    assert browser.complaints() == []


def test_a_click_opens_arrows_walk_and_escape_closes(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    shown = "byId('detail').hidden ? null : [selected.attempt, location.hash]"
    assert browser.run(shown) is None
    browser.click("#tree [data-attempt='4']")
    assert browser.run(shown) == [4, "#attempt-4"]
    browser.press("ArrowRight")
    assert browser.run(shown) == [5, "#attempt-5"]
    browser.press("ArrowLeft")
    browser.press("ArrowLeft")
    assert browser.run(shown) == [3, "#attempt-3"]
    assert browser.run("[...document.querySelectorAll('.mark.selected')].every(mark => mark.dataset.attempt === '3')")
    browser.press("Escape")
    assert browser.run(shown) is None
    assert browser.run("location.hash") == ""
    assert browser.run("document.activeElement.dataset.attempt") == "4"
    assert browser.complaints() == []


def test_in_the_tree_the_keys_follow_the_lineage(browser: Browser, page: Path, finished: Path) -> None:
    child = next(card for card in read_run(finished).cards if card.parents)
    browser.open(page.as_uri())
    browser.run(f"document.querySelector('#tree [data-attempt=\"{child.attempt}\"]').focus()")
    focused = "Number(document.activeElement.dataset.attempt)"
    browser.press("ArrowUp")
    assert browser.run(focused) == child.parents[0]
    browser.press("ArrowDown")
    assert browser.run(focused) == child.attempt
    browser.press("Enter")
    assert browser.run("selected.attempt") == child.attempt
    assert browser.run("[...document.querySelectorAll('#tree [tabindex=\"0\"]')].length") == 1


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_better_is_up_and_a_terrible_score_does_not_flatten_the_curve(
    browser: Browser, tmp_path: Path, higher_is_better: bool
) -> None:
    scores: dict[int, float | None] = {number: 1.0 + number / 10 for number in range(10)}
    scores[9] = -5_000.0 if higher_is_better else 5_000.0
    run = SyntheticRun(attempts=10, score_of=scores, higher_is_better=higher_is_better).build(tmp_path / "run")
    browser.open(write_report(run).as_uri())
    heights = browser.run(
        "run.attempts.map(a => document.querySelector(`#curve [data-attempt='${a.attempt}']`).transform.baseVal[0].matrix.f)"
    )
    ordinary = heights[:9] if higher_is_better else heights[8::-1]
    assert ordinary == sorted(ordinary, reverse=True)
    assert ordinary[0] - ordinary[-1] > 100
    assert heights[9] > max(heights[:9])
    assert browser.run("[...document.querySelectorAll('.outside')].map(mark => mark.dataset.attempt)") == ["9"]
    assert "1 worse score outside the range drawn" in browser.run("byId('curve-notes').textContent")
    best = 8 if higher_is_better else 0
    assert f"attempt {best}" in browser.run("document.querySelector('.best-label').textContent")


def test_the_curves_axis_turns_to_sandbox_seconds(browser: Browser, page: Path, finished: Path) -> None:
    where = "[...document.querySelectorAll('#curve [data-attempt]')].map(m => [m.dataset.attempt, m.transform.baseVal[0].matrix.e])"
    browser.open(page.as_uri())
    by_attempt = browser.run(where)
    browser.click("input[value=seconds]")
    by_seconds = dict(browser.run(where))
    assert dict(by_attempt) != by_seconds
    cards = read_run(finished).cards
    spent = {str(card.attempt): sum(c.sandbox_seconds for c in cards[: card.attempt + 1]) for card in cards}
    order = sorted(by_seconds, key=lambda number: by_seconds[number])
    assert order == sorted(order, key=lambda number: spent[number])
    first, last = order[0], order[-1]
    middle = order[len(order) // 2]
    share = (spent[middle] - spent[first]) / (spent[last] - spent[first])
    drawn = (by_seconds[middle] - by_seconds[first]) / (by_seconds[last] - by_seconds[first])
    assert drawn == pytest.approx(share, abs=0.01)


def test_every_attempt_and_every_parent_is_in_the_tree(browser: Browser, page: Path, finished: Path) -> None:
    cards = read_run(finished).cards
    browser.open(page.as_uri())
    assert browser.run("document.querySelectorAll('#tree .mark').length") == 40
    assert browser.run("document.querySelectorAll('#tree .edge').length") == sum(len(card.parents) for card in cards)
    joined = sum(len(card.parents) == 2 for card in cards)
    assert browser.run("document.querySelectorAll('#tree .edge.second').length") == joined > 0
    best = browser.run("ancestry(best).map(a => a.attempt)")
    assert browser.run("document.querySelectorAll('#tree .edge.best').length") == len(best) - 1
    by_number = {card.attempt: card for card in cards}
    assert all(by_number[child].parents[0] == parent for child, parent in pairwise(best))


@pytest.mark.parametrize("seed", range(5))
def test_no_two_attempts_of_a_tree_overlap(browser: Browser, page: Path, seed: int) -> None:
    rng = random.Random(seed)
    parents = [[rng.randrange(number)] if number and rng.random() < 0.9 else [] for number in range(200)]
    forest = [{"attempt": number, "parents": of} for number, of in enumerate(parents)]
    browser.open(page.as_uri())
    placed = browser.run(
        f"(() => {{ const {{ nodes, columns, rows }} = placeTree({json.dumps(forest)});"
        " return [[...nodes.values()].map(n => [n.x, n.depth]), columns, rows]; })()"
    )
    places, columns, rows = placed
    for number, of in enumerate(parents):
        assert places[number][1] == (places[of[0]][1] + 1 if of else 0)
    for depth in range(rows):
        row = sorted(x for x, at in places if at == depth)
        assert row
        assert all(right - left >= 1 - 1e-9 for left, right in pairwise(row))
        assert row[0] >= -1e-9
        assert row[-1] <= columns - 1 + 1e-9


def test_a_difference_keeps_as_many_lines_as_can_be_kept(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri())
    rng = random.Random(1)
    for _ in range(30):
        before, after = ([rng.choice("abc") for _ in range(rng.randrange(12))] for _ in range(2))
        rows = browser.run(f"lineDiff({json.dumps(before)}, {json.dumps(after)})")
        assert [row["text"] for row in rows if row["kind"] != "+"] == before
        assert [row["text"] for row in rows if row["kind"] != "-"] == after
        assert sum(row["kind"] == " " for row in rows) == _longest_common(before, after)


def _longest_common(before: list[str], after: list[str]) -> int:
    lengths = [0] * (len(after) + 1)
    for line in before:
        diagonal = 0
        for at, other in enumerate(after, start=1):
            diagonal, lengths[at] = lengths[at], diagonal + 1 if line == other else max(lengths[at], lengths[at - 1])
    return lengths[-1]


def test_the_panel_shows_what_changed_against_the_first_parent(browser: Browser, tmp_path: Path) -> None:
    start, middle = ("".join(f"{name}{place}\n" for place in range(9)) for name in "pq")
    sources = {0: f"{start}b = 2\nc = 3\n{middle}", 1: f"{start}b = 5\nc = 3\n{middle}d = 4\n"}
    path = SyntheticRun(attempts=2, source_of=sources).build(tmp_path / "run")
    with sqlite3.connect(path / "store.sqlite") as store:
        (text,) = store.execute("SELECT card FROM cards WHERE attempt = 1").fetchone()
        child = json.dumps(json.loads(text) | {"operator": "improve", "parents": [0]})
        store.execute(
            "INSERT INTO cards SELECT run_id, 2, task, ? FROM cards WHERE attempt = 1",
            (child.replace('"attempt": 1', '"attempt": 2'),),
        )
    browser.open(write_report(path).as_uri() + "#attempt-2")
    lines = browser.run("[...document.querySelectorAll('.diff .line')].map(line => [line.className, line.textContent])")
    assert lines == [
        ["line gap", "6 lines unchanged"],
        *(["line ", f" p{place}"] for place in (6, 7, 8)),
        ["line removed", "-b = 2"],
        ["line added", "+b = 5"],
        *(["line ", f" {text}"] for text in ("c = 3", "q0", "q1")),
        ["line gap", "4 lines unchanged"],
        *(["line ", f" q{place}"] for place in (6, 7, 8)),
        ["line added", "+d = 4"],
    ]


def test_the_panel_shows_what_changed_against_each_parent_of_a_crossover(browser: Browser, tmp_path: Path) -> None:
    path = SyntheticRun(attempts=2, source_of={0: "a = 1\n", 1: "a = 2\n"}).build(tmp_path / "run")
    with sqlite3.connect(path / "store.sqlite") as store:
        (text,) = store.execute("SELECT card FROM cards WHERE attempt = 0").fetchone()
        child = json.dumps(
            json.loads(text) | {"operator": "crossover", "parents": [0, 1], "attempt": 2, "source": "a = 3\n"}
        )
        store.execute("INSERT INTO cards SELECT run_id, 2, task, ? FROM cards WHERE attempt = 0", (child,))
    browser.open(write_report(path).as_uri() + "#attempt-2")
    shown = browser.run(
        "[...document.querySelectorAll('.diff')].map(diff => "
        "[diff.getAttribute('aria-label'), [...diff.querySelectorAll('.line')].map(line => line.textContent)])"
    )
    assert shown == [
        ["Changes against attempt 0", ["-a = 1", "+a = 3"]],
        ["Changes against attempt 1", ["-a = 2", "+a = 3"]],
    ]


def test_the_table_sorts_and_keeps_what_has_no_value_last(browser: Browser, page: Path, finished: Path) -> None:
    scored = sorted(card.validation.value for card in read_run(finished).cards if card.validation)
    browser.open(page.as_uri())
    shown = "[...document.querySelectorAll('#attempts tbody tr')].map(r => byNumber.get(Number(r.dataset.row)).utility)"
    heading = "#attempts th:nth-child(4) button"
    for order in (scored, scored[::-1]):
        browser.run(f"document.querySelector('{heading}').click()")
        values = browser.run(shown)
        assert [-value for value in values if value is not None] == order
        assert values[len(scored) :] == [None] * (40 - len(scored))


def test_an_unfinished_run_and_one_without_attempts_are_shown_as_such(browser: Browser, tmp_path: Path) -> None:
    run = SyntheticRun(attempts=5, finished=False, under_way=2).build(tmp_path / "five")
    browser.open(write_report(run).as_uri())
    assert browser.run("document.querySelector('.state').textContent").startswith(
        "Unfinished: 5 attempts finished, 2 under way, the last result 2026-03-01 09:00:32 UTC"
    )
    assert "not graded on test yet" in browser.run("byId('figures').textContent")
    assert browser.complaints() == []
    run = SyntheticRun(attempts=0, finished=False).build(tmp_path / "none")
    browser.open(write_report(run).as_uri() + "#attempt-0")
    assert browser.run("document.querySelector('.state').textContent") == "Unfinished: 0 attempts finished"
    assert browser.run("byId('tree').textContent") == "No attempt has finished yet."
    assert browser.run("byId('detail').hidden")
    assert browser.complaints() == []
    failed = SyntheticRun(attempts=2, score_of={0: None, 1: None}).build(tmp_path / "failed")
    browser.open(write_report(failed).as_uri())
    assert browser.run("byId('curve').textContent") == "No program has run to a score."
    assert browser.complaints() == []


@pytest.mark.parametrize("fragment", ["", "#attempt-7"])
def test_a_phone_needs_no_scrolling_sideways(browser: Browser, page: Path, fragment: str) -> None:
    browser.open(page.as_uri() + fragment, width=390)
    assert browser.run("[innerWidth, document.documentElement.scrollWidth]") == [390, 390]
    assert browser.run("byId('detail').scrollWidth") <= 390


def test_what_can_be_clicked_has_a_name(browser: Browser, page: Path) -> None:
    browser.open(page.as_uri() + "#attempt-7")
    nameless = browser.run(
        "[...document.querySelectorAll('a, button, summary, [role=button], [role=region], [role=dialog], svg[role]')]"
        ".filter(node => !(node.getAttribute('aria-label') || node.textContent.trim() || node.getAttribute('aria-labelledby')))"
        ".map(node => node.outerHTML)"
    )
    assert nameless == []
    label = browser.run("document.querySelector('#curve [data-attempt=\"0\"]').getAttribute('aria-label')")
    assert re.match(r"Attempt 0, draft, RMSE [\d.]+, rank \d+ of \d+, new best$", label)
