"""`openmle-evo serve`: what it answers, and its pages in a real browser, while runs grow."""

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, open_browser
from evo.synthetic_run import SyntheticRun
from openmle_evo.run import RunDirectory
from openmle_evo.web.runs import Runs, live_payload
from openmle_evo.web.server import WebServer
from openmle_gym.chat import Completion, Message
from openmle_gym.errors import ConfigError, StoreError
from openmle_gym.evaluate import Attempt

HOSTILE = "</script><img src=x onerror=\"window.hacked='prompt'\">"
PROMPT = f"# Operator: draft\n\nDraft.\n\n# Parent program 1 of 1\n\n```python\n# a comment\n{HOSTILE}\n```\n\n# Earlier attempts\n\n- attempt 3, draft, forest"


@contextlib.contextmanager
def served(root: Path) -> Iterator[WebServer]:
    server = WebServer(root, host="127.0.0.1", port=0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def asked(server: WebServer, path: str, *, method: str = "GET", host: str | None = None) -> tuple[int, str, dict]:
    connection = http.client.HTTPConnection(str(server.server_address[0]), server.server_port, timeout=60)
    headers = {} if host is None else {"Host": host}
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    answer = response.status, response.read().decode(), dict(response.getheaders())
    connection.close()
    return answer


def speak(run: RunDirectory, number: int) -> None:
    """Keeps a prompt and a reply for an attempt that the run has."""
    card = next(card for card in run.cards() if card.attempt == number)
    attempt = Attempt(
        run_id=card.run_id,
        task=card.task,
        attempt=number,
        operator=card.operator,
        parents=card.parents,
        selection=card.selection,
    )
    run.replied(attempt, [Message(role="user", content=PROMPT)], Completion(text=f"The reply. {HOSTILE}"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, one that was killed, and two folders that are no runs."""
    root = tmp_path_factory.mktemp("runs")
    finished = SyntheticRun(attempts=40).build(root / "suite" / "rents" / "run-0")
    run = RunDirectory.resume(finished)
    speak(run, 7)
    run.close()
    SyntheticRun(attempts=12, finished=False, under_way=2, seed=3).build(root / "killed")
    (root / "other").mkdir()
    (root / "other" / "manifest.json").write_text('{"kind": "collection"}')
    return root


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[WebServer]:
    with served(folder) as server:
        yield server


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with open_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def test_the_list_tells_of_finished_and_killed_runs_wherever_they_lie(server: WebServer) -> None:
    status, text, _ = asked(server, "/runs.json")
    assert status == 200
    found = {each["name"]: each for each in json.loads(text)["runs"]}
    assert list(found) == ["killed", "suite/rents/run-0"]
    assert (found["killed"]["state"], found["killed"]["attempts"], found["killed"]["test"]) == ("stopped", 12, None)
    assert (found["suite/rents/run-0"]["state"], found["suite/rents/run-0"]["attempts"]) == ("finished", 40)
    curve = [score for _, score in found["suite/rents/run-0"]["curve"]]
    assert curve == sorted(curve, reverse=True)  # of an error
    assert curve[-1] == found["suite/rents/run-0"]["best"]


def test_a_run_that_a_process_has_open_is_running(tmp_path: Path) -> None:
    path = SyntheticRun(attempts=2, finished=False).build(tmp_path / "run")
    runs = Runs(tmp_path)
    assert not runs.look("run").running
    run = RunDirectory.resume(path)
    assert runs.look("run").running
    run.close()
    assert not runs.look("run").running


def test_a_page_that_has_attempts_is_told_only_what_may_have_changed_of_them(server: WebServer) -> None:
    _, text, _ = asked(server, "/run.json?name=killed&have=10&version=old")
    news = json.loads(text)
    assert [len(attempt) for attempt in news["attempts"][:10]] == [2] * 10
    assert all("source" in attempt for attempt in news["attempts"][10:])
    status, text, _ = asked(server, f"/run.json?name=killed&have=12&version={news['live']['version']}")
    assert (status, text) == (204, "")


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/run?name=..",
        "/run?name=other",
        "/run",
        "/run.json?name=killed&have=x&version=",
        "/exchange.json?name=killed&attempt=99",
        "/exchange.json?name=../killed&attempt=0",
    ],
)
def test_what_is_not_there_is_not_found(server: WebServer, path: str) -> None:
    assert asked(server, path)[0] == 404


def test_only_get_is_answered_and_only_under_this_machines_name(server: WebServer) -> None:
    assert asked(server, "/runs.json", method="POST")[0] == 501
    assert asked(server, "/runs.json", host="evil.example:80")[0] == 421
    assert asked(server, "/runs.json", host=f"localhost:{server.server_port}")[0] == 200
    assert asked(server, "/runs.json", host="127.0.0.1.evil.example")[0] == 421


def test_nothing_may_frame_or_keep_the_pages(server: WebServer) -> None:
    _, text, headers = asked(server, "/")
    assert (headers["X-Frame-Options"], headers["Cache-Control"]) == ("DENY", "no-store")
    assert "default-src 'none'" in text


def test_serving_changes_no_file(server: WebServer, folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    asked(server, "/")
    asked(server, "/run?name=killed")
    asked(server, "/exchange.json?name=suite/rents/run-0&attempt=7")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_a_damaged_run_is_named_and_does_not_hide_the_others(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        SyntheticRun(attempts=1).build(tmp_path / name)
    (tmp_path / "bad" / "store.sqlite").write_bytes(b"not a database, and long enough to be looked at" * 100)
    with served(tmp_path) as server:
        found = json.loads(asked(server, "/runs.json")[1])
        assert asked(server, "/run?name=bad")[0] == 500
    assert [each["name"] for each in found["runs"]] == ["good"]
    assert "bad/store.sqlite" in found["damaged"][0]
    with pytest.raises(StoreError):
        Runs(tmp_path).look("bad")


def test_a_folder_that_is_not_there_and_a_taken_port_are_wrong_settings(server: WebServer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        WebServer(tmp_path / "none", host="127.0.0.1", port=0)
    with pytest.raises(ConfigError, match="in use"):
        WebServer(tmp_path, host="127.0.0.1", port=server.server_port)


def test_the_list_links_to_runs_and_compares_their_curves(browser: Browser, server: WebServer) -> None:
    browser.open(server.address)
    lines = "[...document.querySelectorAll('#compared path[data-run]')].map(path => path.dataset.run)"
    assert browser.run(lines) == ["killed", "suite/rents/run-0"]
    browser.click("input[data-name=killed]")
    assert browser.run(lines) == ["suite/rents/run-0"]
    assert browser.run("document.querySelectorAll('#runs tbody tr').length") == 2
    browser.click("a[href*='rents']")
    browser.until("document.querySelectorAll('#tree .mark').length === 40")
    assert browser.run("document.querySelector('.up a').getAttribute('href')") == "/"
    assert browser.complaints() == []


def test_a_page_shows_prompt_memory_and_reply_as_data(browser: Browser, server: WebServer) -> None:
    browser.open(f"{server.address}run?name=suite/rents/run-0#attempt-7")
    folds = "[...document.querySelectorAll('#detail > details > summary')].map(each => each.textContent)"
    assert {"Why selected", "Program", "Log", "Prompt", "Reply"} <= set(browser.run(folds))
    browser.run("[...document.querySelectorAll('#detail > details')].forEach(part => { part.open = true; })")
    browser.until("document.querySelectorAll('#detail .section').length === 3")
    titles = browser.run("[...document.querySelectorAll('#detail .section > summary')].map(each => each.textContent)")
    assert [title.rsplit(" ", 2)[0] for title in titles] == [
        "Operator: draft",
        "Parent program 1 of 1",
        "Earlier attempts (memory)",
    ]
    browser.until("byId('detail').textContent.includes('The reply.')")
    assert HOSTILE in browser.run("byId('detail').textContent")
    assert browser.run("[document.images.length, window.hacked ?? null]") == [0, None]
    assert browser.complaints() == []


def test_a_page_grows_with_its_run_and_keeps_what_is_open(browser: Browser, tmp_path: Path) -> None:
    path = SyntheticRun(attempts=3, finished=False, score_of={0: 5.0, 1: 4.0, 2: 6.0}).build(tmp_path / "run")
    with served(path) as server:
        browser.open(server.address + "#attempt-1")  # of a single run: its page
        assert browser.run("document.querySelector('.state').textContent").startswith("Stopped: 3 attempts")
        assert browser.run("document.querySelector('.up')") is None
        run = RunDirectory.resume(path)
        card = run.cards()[1]
        assert card.validation
        better = card.validation.model_copy(update={"value": 1.0})
        run.judged(card.model_copy(update={"attempt": 3, "validation": better}))
        browser.until("run.attempts.length === 4")
        assert browser.run("document.querySelectorAll('#tree .mark').length") == 4
        assert browser.run("[selected.attempt, selected.rank, byId('detail').hidden]") == [1, 2, False]
        assert browser.run("document.querySelector('.state').textContent").startswith("Running: 4 attempts")
        assert "attempt 3" in browser.run("document.querySelector('.best-label').textContent")
        run.close()
        browser.until("document.querySelector('.state').textContent.startsWith('Stopped')")
        assert browser.complaints() == []
    browser.until("!byId('lost').hidden")


def test_a_page_that_starts_empty_draws_what_comes(browser: Browser, tmp_path: Path) -> None:
    full = SyntheticRun(attempts=5, finished=False).build(tmp_path / "full")
    cards = RunDirectory.resume(full).cards()
    path = SyntheticRun(attempts=0, finished=False).build(tmp_path / "run")
    with served(path) as server:
        browser.open(server.address)
        assert browser.run("document.querySelectorAll('.empty').length") > 3
        run = RunDirectory.resume(path)
        for card in cards:
            run.judged(card)
        browser.until("document.querySelectorAll('#tree .mark').length === 5")
        assert browser.run("document.querySelectorAll('#tree-controls button').length") == 4
        assert browser.run("document.querySelectorAll('#curve .empty, #tree .empty').length") == 0
        run.close()


@pytest.mark.parametrize("path", ["", "run?name=killed", "run?name=suite/rents/run-0#attempt-7"])
def test_on_a_phone_nothing_scrolls_sideways(browser: Browser, server: WebServer, path: str) -> None:
    browser.open(server.address + path, width=390)
    assert browser.run("[innerWidth, document.documentElement.scrollWidth]") == [390, 390]


def test_hundreds_of_attempts_are_told_in_little_once_a_page_has_them(tmp_path: Path) -> None:
    SyntheticRun(attempts=400, program_lines=20).build(tmp_path / "run")
    look = Runs(tmp_path).look("run")
    whole, news = (len(json.dumps(live_payload(look, "run", have=have))) for have in (0, 399))
    assert news < whole / 10
    assert news < 60_000
