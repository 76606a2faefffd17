"""Settings, the planner, the virtual clock, and what the commands print."""

import asyncio
import json
import os
from pathlib import Path

import pytest
import toy
from erl.rl.rl_fakes import make_run
from openmle_erl.cli import main
from openmle_erl.plan import PlanConfig, enough, row_of, spread, table
from openmle_erl.rewards import PAPER
from openmle_erl.rl.commands import load_profile
from openmle_erl.rl.config import RLConfig
from openmle_erl.rl.opening import RunRecord
from openmle_erl.rl.simulation import VirtualLoop, simulate
from openmle_erl.rl.status import read_status, summary_lines
from openmle_gym.errors import ConfigError, StoreError

GIVEN = ["tasks=[x]", "run_dir=y", "model=z"]
PROFILES = ("async_1node", "sync_1node", "async_2node", "sync_2node")


@pytest.mark.parametrize("name", PROFILES)
def test_the_paper_profiles_have_the_published_values(name: str) -> None:
    config = load_profile(f"rl_paper_{name}", GIVEN)
    assert (config.schedule.groups_per_step, config.samples_per_group, config.global_batch) == (16, 16, 128)
    assert config.schedule.optimiser_steps == 2
    assert config.asynchronous == name.startswith("async")
    assert (config.sampling.max_new_tokens, config.sampling.temperature) == (24_576, 1.0)
    assert (config.evaluation.interval, config.evaluation.temperature, config.evaluation.top_p) == (5, 0.7, 0.95)
    assert list(config.operators.shares().values()) == [0.5, 0.17, 0.17, 0.16]
    assert config.rewards.settings() == PAPER
    optimiser, objective = config.trainer.optimiser, config.trainer.objective
    assert (optimiser.learning_rate, optimiser.weight_decay, optimiser.beta2) == (1e-6, 0.1, 0.98)
    assert (objective.kind, objective.clip_low, objective.clip_high, objective.tis_cap) == ("gspo", 3.5e-4, 3.5e-4, 2.0)
    assert config.sandbox.workers == (128 if name == "async_1node" else 256)
    assert config.trainer.engine.model == "z"


@pytest.mark.parametrize("name", ["rl", "rl_laptop", "rl_smoke"])
def test_the_other_profiles_are_valid(name: str) -> None:
    assert isinstance(load_profile(name, GIVEN), RLConfig)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("samples_per_group=1", "samples_per_group"),
        ("group.least=17", "group.least"),
        ("schedule.optimiser_steps=3", "schedule.optimiser_steps"),
        ("schedule.pause=later", "schedule.pause"),
        ("context_tokens=9000", "context_tokens"),
        ("rewards.preset=best", "rewards.preset"),
        ("rewards.advantage=none", "rewards.advantage"),
        ("operators.draft=-1", "operators.draft"),
        ("queue.max_staleness=-1", "queue.max_staleness"),
        ("memory.notes=eager", "memory.notes"),
        ("sandbox.workers=0", "sandbox.workers"),
        ("trainer.optimiser.learning_rate=0", "learning_rate"),
        ("speed=9", "speed"),
    ],
)
def test_a_setting_that_cannot_work_is_named_before_anything_starts(override: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        load_profile("rl", [*GIVEN, override])


def test_an_ablation_is_one_setting() -> None:
    settings = load_profile("rl", [*GIVEN, "rewards.advantage=group_normalised", "rewards.bounds=theoretical"])
    changed = settings.rewards.settings()
    assert (changed.advantages.kind, changed.bounds_mode) == ("group_normalised", "theoretical")


def test_the_virtual_clock_jumps_and_keeps_the_order() -> None:
    order: list[tuple[float, str]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        order.append((asyncio.get_running_loop().time(), name))

    async def both() -> None:
        await asyncio.gather(sleeper("late", 7200.0), sleeper("early", 60.0))

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(both())
    assert [(pytest.approx(seconds), name) for seconds, name in order] == [(60.0, "early"), (7200.0, "late")]


def test_a_simulation_without_spread_takes_the_time_that_can_be_worked_out_by_hand() -> None:
    config = PlanConfig(
        tasks=2,
        steps=2,
        groups_per_step=2,
        samples_per_group=4,
        runtime_seconds=100.0,
        task_sigma=1e-9,
        runtime_sigma=1e-9,
        sandbox_workers=4,
        engines=1,
        engine_slots=8,
        tokens_per_second=10.0,
        prompt_tokens=500,
        reply_tokens=500,
        reply_sigma=1e-9,
        trainer_tokens_per_second=100.0,
        synchronise_seconds=7.0,
    )
    done = simulate(config, asynchronous=False)
    # 8 replies at once of 50 s, 8 programs in two rounds of 100 s; 8 x 1,000 tokens by 100/s, and a third of that for
    # the old log-probabilities; new weights.
    assert done.step_seconds == pytest.approx(50 + 200 + 80 + 80 / 3 + 7, rel=0.01)
    assert done.sandbox_share == pytest.approx(200 / done.step_seconds, rel=0.01)
    assert done.fates["trained"] == 16
    assert spread(done) == 0
    row = row_of("by hand", config, done)
    assert row.samples_per_hour == pytest.approx(3600 * 8 / done.step_seconds)
    assert "by hand" in table([row])


def test_asynchronous_steps_are_shorter_and_lose_nothing() -> None:
    config = PlanConfig(steps=6, tasks=6, groups_per_step=6, samples_per_group=4, sandbox_workers=32)
    synchronous, asynchronous = (simulate(config, asynchronous=each) for each in (False, True))
    assert synchronous.step_seconds > 1.3 * asynchronous.step_seconds
    assert spread(asynchronous) <= 2
    assert asynchronous.fates["trained"] + asynchronous.fates["no_signal"] == sum(asynchronous.fates.values())


def test_workers_pay_until_doubling_them_saves_less_than_a_twentieth() -> None:
    assert enough(PlanConfig(), "sandbox_workers", lambda changed: 100 + 640 / changed.sandbox_workers) == 64
    assert enough(PlanConfig(), "engines", lambda changed: 5.0) == 1


def test_plan_prints_a_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["steps=1", "tasks=2", "groups_per_step=2", "samples_per_group=2", "sandbox_workers=4", "engines=2"]
    assert main(["plan", *small]) == 0
    printed = capsys.readouterr()
    rows = json.loads(printed.out)["rows"]
    assert [row["name"] for row in rows] == [
        "synchronous",
        "asynchronous",
        "asynchronous, sandbox_workers=2",
        "asynchronous, sandbox_workers=8",
        "asynchronous, engines=1",
        "asynchronous, engines=4",
    ]
    assert "trainer idle" in printed.err
    assert main(["plan", "steps=0"]) == 2
    assert "steps: must be more than 0" in capsys.readouterr().err


def test_status_reads_a_run_and_its_fates_add_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def whole() -> int:
        training = make_run(tmp_path / "run", evaluated=("held-out",))
        await training.run()
        return training.queue.next_attempt()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        samples = runner.run(whole())
    settings = load_profile("rl_smoke", GIVEN)
    record = RunRecord(
        run_id="run",
        created_at="2026-01-01T00:00:00Z",
        openmle_version="0",
        settings={"schedule": {"steps": settings.schedule.steps}},
    )
    (tmp_path / "run" / "run.json").write_text(record.model_dump_json())
    status = read_status(tmp_path / "run")
    assert status.steps == 4
    assert sum(status.fates.values()) == status.samples == samples
    assert sum(status.exposure.values()) == status.groups["trained"] == 12
    assert sum(status.outcomes.values()) == pytest.approx(1.0)
    assert 0.0 < status.last["progress/mean"] < 1.0
    assert [each["eval/step"] for each in status.evaluations] == [2, 4]
    assert any(line.startswith("groups per task: 4 to 4") for line in summary_lines(status))
    assert main(["status", str(tmp_path / "run")]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == samples
    with pytest.raises(StoreError, match="holds no run"):
        read_status(tmp_path)


def test_a_file_that_is_cut_off_is_named_by_status_and_by_the_next_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"

    async def whole() -> None:
        training = make_run(run)
        await training.run()
        training.queue.close()
        training.experience._store.close()  # the last to close it leaves all in the one file

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(whole())
    record = RunRecord(run_id="run", created_at="2026-01-01T00:00:00Z", openmle_version="0", settings={})
    (run / "run.json").write_text(record.model_dump_json())
    file = run / "experience.sqlite"
    os.truncate(file, file.stat().st_size // 2)
    assert main(["status", str(run)]) == 1
    assert f"error: {file}: " in capsys.readouterr().err

    async def again() -> None:
        make_run(run)

    with pytest.raises(StoreError, match=r"experience\.sqlite: (damaged|not a card store): .*malformed"):
        asyncio.run(again())


@pytest.mark.parametrize(
    ("tasks", "facts", "complaint"),
    [
        ("", None, "tasks: must name at least one place"),
        ("nowhere", None, "tasks: nowhere: no task package there"),
        ("tasks", None, "model/config.json: No such file or directory"),
        ("tasks", "{", "model/config.json: JSONDecodeError"),
        ("tasks", "{}", "model/config.json: KeyError: 'max_position_embeddings'"),
        ("tasks", '{"max_position_embeddings": 8191}', "context_tokens: 8192 is beyond the 8191 positions of "),
    ],
)
def test_what_a_run_reads_is_looked_at_before_anything_is_started(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tasks: str,
    facts: str | None,
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    toy.write_toy_package(tmp_path / "tasks" / "toy")
    if facts is not None:
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "config.json").write_text(facts)
    assert main(["train", "rl_smoke", f"tasks=[{tasks}]", "run_dir=run", "model=model"]) == 2
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
