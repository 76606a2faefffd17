"""The closed loop: its settings, its figures by hand, its plan, and all of it once in small."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from openmle_evo.evaluation.results import RunOutcome
from openmle_gym.errors import ConfigError

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "scripts" / "meta_evolution"


def module(name: str) -> ModuleType:
    """A file of the script, under a name that nobody else uses."""
    spec = importlib.util.spec_from_file_location(f"meta_evolution_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found


RESULTS, CONFIG, MACHINERY = module("results"), module("config"), module("machinery")


def loop(*arguments: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, FOLDER / "run.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"PATH": path})


def outcome(task: str, run: int, beaten: float | None) -> RunOutcome:
    return RunOutcome(
        task=task,
        run=run,
        valid=beaten is not None,
        score=beaten,
        higher_is_better=True,
        has_leaderboard=True,
        fraction_beaten=beaten,
    )


def test_what_is_measured_on_was_never_trained_on() -> None:
    with pytest.raises(ConfigError, match=r"held_out: its data are trained on too: .*sklearn/digits"):
        CONFIG.LoopConfig(train=["digits", "diabetes"], held_out=["digits", "meats"])
    assert CONFIG.LoopConfig(train=["digits"], held_out=["meats"]).seeds == [0, 1, 2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train": ["digitz"]}, "train: no anchors digitz"),
        ({"held_out": []}, "held_out: no anchors"),
        ({"ablations": ["kl"]}, "ablations: must be among group_normalised, static_bounds, got kl"),
        ({"seeds": [1, 1]}, "seeds: must be different numbers"),
        ({"rounds": 0}, "rounds: must be at least 1, got 0"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CONFIG.LoopConfig(**settings)


def test_a_draft_without_a_score_is_worth_nothing_and_tasks_weigh_the_same() -> None:
    drafts = [outcome("a", 0, 0.5), outcome("a", 1, None), outcome("b", 0, 0.75)]
    found = RESULTS.single_drafts(drafts, {})
    assert found.by_task == {"a": 0.25, "b": 0.75}
    assert found.utility == 0.5
    assert found.utility_of_valid == 0.625
    assert found.valid == pytest.approx(2 / 3)
    assert not found.enough


def test_differences_are_matched_by_task_and_their_error_is_over_tasks() -> None:
    found = RESULTS.difference({"a": 0.5, "b": 0.9, "c": 0.4}, {"a": 0.4, "b": 0.6, "c": 0.2})
    assert found.difference == pytest.approx(0.2)
    assert found.standard_error == pytest.approx(0.1 / 3**0.5)  # 0.1, 0.3, 0.2: deviation 0.1
    assert found.p_value == 0.25  # two of eight signs reach the sum
    assert found.exact


@pytest.mark.parametrize(
    ("samples", "gain", "passed"),
    [(250, (0.21, 0.2, 0.22), True), (250, (0.1, 0.6, 0.0), False), (249, (0.2,) * 3, False)],
)
def test_the_gate_is_two_errors_and_enough_samples(samples: int, gain: tuple[float, ...], passed: bool) -> None:
    single = RESULTS.single_drafts([outcome("a", run, 0.5) for run in range(samples)], {})
    less_base = RESULTS.difference(dict(zip("abc", gain, strict=True)), dict.fromkeys("abc", 0.0))
    side = RESULTS.Side(drafts={"base": single, "trained": single}, less_base={"trained": less_base}, ablations={})
    assert RESULTS.gate(side).passed is passed  # 0.1, 0.6 and 0: mean 0.233, error 0.186


def test_a_generation_is_measured_against_the_same_policy_of_the_last() -> None:
    def generation(name: str, drafts: dict[str, list[float]]) -> object:
        singles = {
            policy: RESULTS.single_drafts(
                [outcome(task, 0, each) for task, each in zip("abc", values, strict=True)], {}
            )
            for policy, values in drafts.items()
        }
        sides = {"held-out": RESULTS.Side(drafts=singles, less_base={}, ablations={})}
        gate = RESULTS.Gate(passed=False, why="")
        return RESULTS.Round(name=name, examples=1, sides=sides, gate=gate, searches={}, searches_compared={})

    before = generation("round-1", {"recipes": [0.9, 0.9, 0.9], "trained": [0.4, 0.6, 0.2]})
    (found,) = RESULTS.generations(before, generation("round-2", {"trained": [0.5, 0.9, 0.4]}))
    assert (found.round, found.policy, found.side) == ("round-2", "trained", "held-out")
    assert found.less_before.difference == pytest.approx(0.2)
    assert found.less_before.p_value == 0.25  # two of eight signs reach the sum


def test_policies_trained_with_other_seeds_are_pooled_as_runs_of_their_own(tmp_path: Path) -> None:
    for name in ("base", "trained-0", "trained-1", "group_normalised-0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "suite.json").write_text("{}")
    found = RESULTS.by_policy(tmp_path, "suite.json")
    assert {name: [path.name for path in paths] for name, paths in found.items()} == {
        "base": ["base"],
        "group_normalised": ["group_normalised-0"],
        "trained": ["trained-0", "trained-1"],
    }
    read = {path: [outcome("a", 0, 0.1), outcome("a", 1, 0.2)] for path in found["trained"]}
    assert [each.run for each in RESULTS.pooled(found["trained"], read.__getitem__)] == [0, 1, 2, 3]


def test_the_cluster_profile_prints_a_plan_whose_settings_were_checked(tmp_path: Path) -> None:
    done = loop("cluster", f"run_dir={tmp_path / 'plan'}")
    assert done.returncode == 0, done.stderr
    for part in (
        "--profile paper_30b",
        "topology=async_2node",
        "sglang.launch_server",
        "trainer-0: node 0",
        "budget.attempts=800",
    ):
        assert part in done.stdout
    wrong = loop("cluster", f"run_dir={tmp_path / 'plan'}", "sft=['optimiser.learning_rate=-1']")
    assert wrong.returncode == 2
    assert "learning_rate: must be above 0" in wrong.stderr


def test_a_loop_that_is_given_again_waits_for_the_server_that_the_killed_one_left(tmp_path: Path) -> None:
    server = f"""
import pathlib, signal, sys, time
held, may_end = pathlib.Path({str(tmp_path)!r}, "held"), pathlib.Path({str(tmp_path)!r}, "may_end")
def end(*_):
    while not may_end.exists():
        time.sleep(0.02)
    held.unlink()
    sys.exit()
signal.signal(signal.SIGTERM, end)
held.touch(exist_ok=False)
pathlib.Path(sys.argv[1]).touch()
while True:
    signal.pause()
"""
    loop = f"""
import os, pathlib, signal, sys
sys.path.insert(0, {str(FOLDER)!r})
from machinery import Machinery
machinery = Machinery(pathlib.Path({str(tmp_path / "loop")!r}))
with machinery.server("sandbox", [sys.executable, "-c", {server!r}, "{{ready}}"], {{}}):
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", loop, "killed"], check=False)
    assert killed.returncode == -9
    with subprocess.Popen([sys.executable, "-c", loop, "again"], stderr=subprocess.PIPE, text=True) as again:
        assert again.stderr is not None
        assert "sandbox: waiting for the one before to end" in again.stderr.readline()
        (tmp_path / "may_end").touch()
    assert again.returncode == 0


def test_two_loops_never_run_in_one_folder(tmp_path: Path) -> None:
    first = MACHINERY.Machinery(tmp_path)
    with pytest.raises(ConfigError, match="another loop runs on it"):
        MACHINERY.Machinery(tmp_path)
    del first


@pytest.mark.slow
def test_all_stages_run_once_and_are_not_run_again(tmp_path: Path) -> None:
    run = tmp_path / "loop"
    arguments = ["smoke", f"run_dir={run}", "runner=auto", "ablations=[group_normalised]"]
    done = loop(*arguments)
    assert done.returncode == 0, done.stderr
    stages = {path.stem for path in (run / "stages").glob("*.json")}
    for stage in ("teacher-drafts", "round-1-corpus", "round-1-sft", "round-1-rl-seed-0", "skills", "report"):
        assert stage in stages
    found = json.loads((run / "results.json").read_text())
    measured = found["rounds"][0]
    held_out = measured["sides"]["held-out"]
    assert set(held_out["drafts"]) == {"recipes", "base", "trained", "group_normalised"}
    assert set(held_out["ablations"]) == {"group_normalised"}
    assert set(measured["searches"]) == {"recipes", "base", "trained", "max-recipes", "max-trained"}
    assert held_out["drafts"]["recipes"]["valid"] > 0.0
    assert found["training"]["round-1-rl-seed-0"]["steps"] == 2
    assert not measured["gate"]["passed"]  # one task tells nothing
    assert "<svg" in (run / "report.html").read_text()
    again = loop(*arguments)
    assert again.returncode == 0, again.stderr
    assert again.stdout == done.stdout
    ran = [line for line in again.stderr.splitlines() if line.endswith(" s")]
    assert [line.split()[1] for line in ran] == ["report:"]  # no other stage
    for line in (run / "stages").glob("*.sh"):
        assert os.environ.get("OPENMLE_SANDBOX_KEY", "no key") not in line.read_text()
