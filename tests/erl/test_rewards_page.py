"""The code of docs/rewards.md runs, and gives what the page says."""

import re
import sys
import typing
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import typing_extensions
from openmle_erl.rewards import entropic_advantages

PAGE = (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python *([\w-]*)\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


def blocks(framework: str) -> list[str]:
    return [code for needs, code in BLOCKS if needs == framework]


def run(code: str, **given: Any) -> dict[str, Any]:
    exec(compile(code, "docs/rewards.md", "exec"), given)  # our own page
    return given


def test_every_block_is_run_by_a_test_here() -> None:
    assert {needs for needs, _ in BLOCKS} == {"", "trl", "verl", "skyrl", "prime-rl"}
    assert len(BLOCKS) == 3 + 4


def test_the_figures_are_there() -> None:
    figures = re.findall(r"!\[.+\]\((figures/.+\.svg)\)", PAGE)
    assert len(figures) == 4
    assert all((Path(__file__).parents[2] / "docs" / figure).stat().st_size < 100_000 for figure in figures)


def test_the_first_block_gives_the_numbers_that_its_comments_say() -> None:
    first = blocks("")[0]
    ran = run(first)
    shown = re.findall(r"^(.*?)  # \[(.*)\]$", first, flags=re.MULTILINE)
    assert len(shown) == 2
    for expression, numbers in shown:
        expected = [float(number) for number in numbers.split(",")]
        np.testing.assert_allclose(eval(expression, ran), expected, atol=5e-4)


def test_rewards_of_a_batch_go_on_from_the_saved_history() -> None:
    ran = run(blocks("")[1])
    assert ran["resumed"].history == ran["rewards"].history == {"wine": [("3f2a", 0.91), (None, 0.87)]}


async def test_slimes_hooks_work_together() -> None:
    async def run_program(task: str, reply: str) -> tuple[float | None, str]:
        return (None, "infrastructure") if reply == "" else (float(reply), "success")

    ran = run(blocks("")[2], run_program=run_program)
    samples = [
        SimpleNamespace(
            group_index=0,
            rollout_id=place,
            label="wine",
            response=reply,
            remove_sample=False,
            status=SimpleNamespace(value="completed"),
        )
        for place, reply in enumerate(["0.5", "", "0.8", "0.6"])
    ]
    for sample in samples:
        sample.reward = await ran["reward"](None, sample)
    raw, processed = ran["post_process"](None, samples)
    assert np.isnan(raw[1])
    assert [sample.remove_sample for sample in samples] == [False, True, False, False]
    best = entropic_advantages([raw[0], raw[2], raw[3]], [0] * 3, cap=20.0)
    np.testing.assert_allclose(processed, [best[0], 0.0, best[1], best[2]])


def test_the_prime_rl_class_assigns_every_trainable_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against stand-ins with the documented signatures; the package itself cannot be had."""
    assigned: list[tuple[Any, float]] = []
    base, routing = ModuleType("base"), ModuleType("routing")
    base.Algorithm = object  # pyright: ignore[reportAttributeAccessIssue]
    base.iter_trainable_traces = lambda episodes: (  # pyright: ignore[reportAttributeAccessIssue]
        (episode, trace) for episode in episodes for trace in episode.traces if not trace.has_error
    )
    routing.assign_advantages = lambda trace, advantage: assigned.append((trace, advantage))  # pyright: ignore
    for name in ("prime_rl", "prime_rl.orchestrator", "prime_rl.orchestrator.algo"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "prime_rl.orchestrator.algo.base", base)
    monkeypatch.setitem(sys.modules, "prime_rl.orchestrator.algo.routing", routing)
    algorithm = run(blocks("prime-rl")[0])["EntropicAlgorithm"]()
    rewards = [0.1, 0.0, 0.4, 0.9]
    traces = [SimpleNamespace(reward=reward, has_error=place == 1) for place, reward in enumerate(rewards)]
    with pytest.raises(StopIteration):
        algorithm.score_group([SimpleNamespace(traces=traces[:2]), SimpleNamespace(traces=traces[2:])]).send(None)
    best = entropic_advantages([0.1, 0.4, 0.9], [0] * 3, cap=20.0)
    assert [trace for trace, _ in assigned] == [traces[0], traces[2], traces[3]]
    np.testing.assert_allclose([advantage for _, advantage in assigned], best)


def test_the_trl_block_trains(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="TRL is not installed")
    from datasets import Dataset
    from erl.tiny_qwen import tiny_model, tiny_tokenizer

    async def run_programs(tasks: list[str], completions: list[str]) -> list[tuple[float | None, str]]:
        return [(0.5 + place / 10, "success") for place in range(len(completions))]

    options = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "max_steps": 1, "num_generations": 4}
    options |= {"per_device_train_batch_size": 4, "max_completion_length": 4, "report_to": [], "disable_tqdm": True}
    ran = run(
        blocks("trl")[0],
        model=tiny_model(),
        tokenizer=tiny_tokenizer(),
        dataset=Dataset.from_list([{"prompt": "a b", "task": "wine"}] * 4),
        options=options,
        run_programs=run_programs,
    )
    assert ran["trainer"].state.global_step == 1
    rewards = 0.05 + 0.95 * (np.arange(4) + 0.75) / 3.75
    np.testing.assert_allclose(
        list(ran["trainer"]._logs["advantages"]), entropic_advantages(rewards, [0] * 4), rtol=1e-5, atol=1e-6
    )


def test_the_verl_block_registers_its_estimator() -> None:
    pytest.importorskip("verl", reason="verl is not installed")
    run(blocks("verl")[0])
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    assert callable(get_adv_estimator_fn("my_entropic"))


def test_the_skyrl_block_registers_its_estimator(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("skyrl", reason="SkyRL is not installed")
    if sys.version_info < (3, 12):
        monkeypatch.setattr(typing, "TypedDict", typing_extensions.TypedDict)
    run(blocks("skyrl")[0])
    from skyrl.backends.skyrl_train.utils.ppo_utils import AdvantageEstimatorRegistry

    assert "my_entropic" in AdvantageEstimatorRegistry.list_available()
