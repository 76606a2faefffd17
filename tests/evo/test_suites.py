"""Suites over prepared benchmarks: which packages they name, and a whole one on a competition made by us."""

import json
import random
from pathlib import Path

import pytest
from gym_bridges.prepared import Bench, write_table
from openmle_evo.audit import audit
from openmle_evo.cli import main
from openmle_evo.config import CONFIGS, SearchConfig
from openmle_evo.evaluation.cli import EvaluateConfig, suite_packages
from openmle_evo.evaluation.suite import open_suite, read_suite
from openmle_evo.reading import read_run
from openmle_gym.bridges.mle_bench.facts import lite_ids
from openmle_gym.bridges.mle_bench.importing import import_competition
from openmle_gym.configuration import load_config
from openmle_gym.errors import ConfigError
from scripted_server import Reply, serving

COMPETITION = "tabular-playground-series-may-2022"


def _config(*overrides: str) -> EvaluateConfig:
    return load_config(EvaluateConfig, "evaluate", configs=CONFIGS, overrides=["suite_dir=suite", *overrides])


def test_mle_bench_lite_is_22_tasks_three_times_under_the_published_budgets() -> None:
    config = _config("suite=mle_bench_lite", "packages=prepared")
    assert tuple(sorted(config.names)) == tuple(sorted(lite_ids()))
    assert (len(config.names), config.runs) == (22, 3)
    assert (config.timeout_seconds, config.budget.sandbox_seconds) == (7200, 43_200)


def test_a_suite_searches_on_one_package_and_is_graded_on_the_other(tmp_path: Path) -> None:
    for half in ("search", "official"):
        for name in ("a", "b"):
            (tmp_path / half / name).mkdir(parents=True)
    packages = suite_packages(_config("names=[b,a]", f"packages={tmp_path}"))
    assert [Path(task).relative_to(tmp_path).as_posix() for task in packages.tasks] == ["search/b", "search/a"]
    assert [Path(task).relative_to(tmp_path).as_posix() for task in packages.finals] == ["official/b", "official/a"]
    suite = tmp_path / "suite"
    open_suite(suite, packages.tasks, 1, SearchConfig(task=""), finals=packages.finals)
    assert read_suite(suite).finals == tuple(packages.finals)
    with pytest.raises(ConfigError, match="other tasks or settings"):
        open_suite(suite, packages.tasks, 1, SearchConfig(task=""))


@pytest.mark.parametrize("command", ["evaluate", "drafts"])
def test_what_cannot_run_leaves_no_suite_behind(tmp_path: Path, command: str) -> None:
    (tmp_path / "no-package").mkdir()
    suite = tmp_path / "suite"
    assert main([command, f"tasks=[{tmp_path / 'no-package'}]", f"suite_dir={suite}"]) == 1
    assert main([command, f"tasks=[{tmp_path / 'no-package'}]", f"suite_dir={suite}", "tokenizer=none.json"]) != 0
    assert not suite.exists()


def test_what_is_not_prepared_is_named(tmp_path: Path) -> None:
    (tmp_path / "search" / "a").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"no .*/official/a; pick those that are prepared"):
        suite_packages(_config("names=[a]", f"packages={tmp_path}"))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "tasks: give"),
        (["names=[a]"], "packages: goes with names"),
        (["names=[a]", "packages=p", "tasks=[t]"], "not both"),
        (["tasks=[t]", "packages=p"], "packages: goes with names"),
    ],
)
def test_a_suite_has_tasks_or_pairs_of_packages(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _config(*overrides)


def _competition(root: Path) -> Path:
    """The folder of both packages of a competition prepared in mle-bench's layout, whose target follows from x."""
    rng = random.Random(0)

    def rows(start: int, count: int) -> list[dict[str, object]]:
        made = []
        for number in range(start, start + count):
            x = rng.random()
            made.append({"id": number, "x": round(x, 4), "y": round(rng.random(), 4), "target": int(x > 0.5)})
        return made

    def without_target(rows: list[dict[str, object]]) -> list[dict[str, object]]:
        return [{key: value for key, value in row.items() if key != "target"} for row in rows]

    bench, test = Bench(root), rows(1000, 60)
    answers = [{"id": row["id"], "target": row["target"]} for row in test]
    sample = [{"id": row["id"], "target": 0.5} for row in test]
    public = bench.add(COMPETITION, targets=["target"], answers=answers, sample=sample)
    write_table(public / "train.csv", rows(0, 200))
    write_table(public / "test.csv", without_target(test))
    import_competition(COMPETITION, data=bench.data, checkout=bench.checkout, output=root / "packages")
    return root / "packages"


@pytest.mark.slow
def test_a_suite_runs_on_a_prepared_competition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packages, suite = _competition(tmp_path), tmp_path / "suite"
    own = ["runs=1", "budget.attempts=3", "timeout_seconds=60", "memory_mib=2048", "runner=process"]
    command = ["evaluate", "suite=mle_bench_lite", f"packages={packages}", f"names=[{COMPETITION}]"]
    assert main([*command, f"suite_dir={suite}", "allow_process=true", "workers=1", *own]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["complete"], result["finished_runs"]) == (True, 1)
    run = suite / COMPETITION / "run-0"
    facts = read_run(run)
    assert facts.manifest.protocol == "two_package"
    assert facts.manifest.final_package is not None
    assert Path(facts.manifest.final_package.package) == packages / "official" / COMPETITION
    assert facts.final is not None
    assert facts.final.test is not None
    assert facts.final.standing is not None  # on the official package's leaderboard
    assert all(finding.passed for finding in audit(run))


@pytest.mark.slow
def test_a_run_that_spent_its_seconds_without_a_valid_program_is_over_and_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    packages, suite = _competition(tmp_path), tmp_path / "suite"
    message = {"role": "assistant", "content": "A plan.\n```python\nraise ValueError(1)\n```"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    reply = Reply(200, json.dumps({"model": "m", "choices": [choice]}).encode())
    monkeypatch.setenv("OPENMLE_MODEL", "m")
    with serving(lambda asked: reply) as address:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{address}/v1")
        command = ["evaluate", f"tasks=[{packages / 'search' / COMPETITION}]", f"suite_dir={suite}", "policy=openai"]
        command += ["runs=1", "workers=1", "budget.sandbox_seconds=0.001", "runner=process", "allow_process=true"]
        assert main(command) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["complete"], result["finished_runs"]) == (True, 1)
    assert result["result"]["valid_rate"]["mean"] == 0.0
    assert main(command) == 0  # nothing is asked again: nobody would answer
