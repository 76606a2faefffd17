"""The commands that a newcomer runs, as they run them."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from openmle_evo.run import read_final
from openmle_gym.experience import ExperienceCard
from openmle_gym.features import best_card
from openmle_gym.operators import Operator
from openmle_gym.store import CardStore

ROOT = Path(__file__).parent.parent
BINARIES = Path(sys.executable).parent
pytestmark = pytest.mark.slow


def command(*arguments: str | Path) -> list[str]:
    return [str(BINARIES / str(arguments[0])), *map(str, arguments[1:])]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    build = command("openmle-gym", "anchors", "build", "breast-cancer", "--output", folder, "--allow-process")
    subprocess.run(build, check=True, capture_output=True, cwd=ROOT)
    return folder


def cards_of(run: Path) -> list[ExperienceCard]:
    return CardStore(run / "store.sqlite").cards()


def search(tasks: Path, run: Path, *settings: str) -> list[str]:
    return command(
        "openmle-evo",
        "search",
        f"task={tasks / 'breast-cancer'}",
        f"run_dir={run}",
        "workers=1",
        "budget.attempts=10",
        "allow_process=true",
        "docker_image=none/such:image",
        *settings,
    )


def wait_for_cards(run: Path, count: int, process: subprocess.Popen) -> None:
    while process.poll() is None:
        if (run / "store.sqlite").exists():
            try:
                store = sqlite3.connect(f"file:{run / 'store.sqlite'}?mode=ro", uri=True)
                if store.execute("SELECT count(*) FROM cards").fetchone()[0] >= count:
                    return
            except sqlite3.OperationalError:
                pass  # not written yet
        time.sleep(0.02)
    raise AssertionError("the search ended by itself")


def test_a_killed_search_resumes_to_the_tree_of_an_uninterrupted_one(tasks: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(search(tasks, whole), check=True, capture_output=True)
    for cards in (2, 6):
        arguments = command("openmle-evo", "resume", killed) if killed.exists() else search(tasks, killed)
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_cards(killed, cards, process)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    done = subprocess.run(command("openmle-evo", "resume", killed), check=True, capture_output=True, text=True)
    assert json.loads(done.stdout)["run_dir"] == str(killed)
    shapes = [
        [(c.attempt, c.operator, c.parents, c.program_id, c.outcome, c.validation) for c in cards_of(run)]
        for run in (whole, killed)
    ]
    assert shapes[0] == shapes[1]
    final = read_final(killed)
    assert final is not None
    assert final.test is not None


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_once_finishes_what_is_under_way_and_twice_stops_now(tasks: Path, tmp_path: Path, times: int) -> None:
    run = tmp_path / "run"
    process = subprocess.Popen(search(tasks, run), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_cards(run, 1, process)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    errors = ""
    while "once more to stop now" not in errors:
        errors += process.stderr.readline()
    if times == 2:
        process.send_signal(signal.SIGINT)
    errors += process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert f"openmle-evo resume {run}" in errors
    assert "Traceback" not in errors
    assert (read_final(run) is not None) == (times == 1 and best_card(cards_of(run)) is not None)
    left = subprocess.run(["pgrep", "-f", str(run)], capture_output=True, text=True, check=False)
    assert left.stdout == ""


def test_the_quickstart_runs_from_the_clone_to_a_graded_program(tmp_path: Path) -> None:
    environment = os.environ | {"TASK": "breast-cancer", "STEPS": "24", "RUNS": str(tmp_path)}
    done = subprocess.run(
        ["scripts/quickstart.sh"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = tmp_path.iterdir()
    cards = cards_of(run)
    assert sorted(card.attempt for card in cards) == list(range(24))
    assert {card.operator for card in cards} == set(Operator)
    assert all(card.test is None for card in cards)
    final = read_final(run)
    assert final is not None
    assert final.test is not None
    assert final.sample_submission is not None
    assert final.test.utility > final.sample_submission.utility
    assert final.standing is not None
    assert str(run / "report.html") in done.stderr.replace("\n", "")
    assert (run / "report.html").stat().st_size > 10_000
    assert not subprocess.run(["pgrep", "-f", str(run / "sandbox")], capture_output=True, check=False).stdout
