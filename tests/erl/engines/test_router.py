"""Several engines as one: where requests go, what becomes of those on an engine that is lost, who gets which weights."""

import asyncio
from pathlib import Path

import numpy as np
import pytest
from openmle_erl.engines.protocols import Finish, GenerateRequest, Generation, PauseMode, Sampling
from openmle_erl.engines.router import Router, synchronise_weights
from openmle_gym.errors import ConfigError, InfrastructureError, ModelUnavailable


class Engine:
    """Answers when it is let; `broken` fails everything."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.let = asyncio.Event()
        self.broken = False
        self.calls: list[object] = []
        self._version = 0

    async def generate(self, request: GenerateRequest) -> Generation:
        await self._do(None)
        self.open.append(request.request_id)
        await self.let.wait()
        return Generation(
            request_id=request.request_id,
            token_ids=(),
            logprobs_T=np.zeros(0, np.float32),
            finish=Finish.STOP,
            spans=(),
        )

    async def _do(self, call: object) -> None:
        if self.broken:
            raise ModelUnavailable("broken")
        if call is not None:
            self.calls.append(call)

    async def pause(self, mode: PauseMode) -> None:
        await self._do(mode)

    async def load_weights(self, folder: Path, version: int) -> None:
        await self._do(version)
        self._version = version

    async def resume(self) -> None:
        await self._do("resume")

    async def version(self) -> int:
        await self._do(None)
        return self._version


def ask(name: str, prompt: int) -> GenerateRequest:
    return GenerateRequest(request_id=name, prompt_ids=(prompt,), sampling=Sampling())


def router_of(**engines: Engine) -> Router:
    return Router(engines.items(), patience_seconds=0.2)


async def started(router: Router, *requests: GenerateRequest) -> list[asyncio.Task[Generation]]:
    tasks = [asyncio.create_task(router.generate(request)) for request in requests]
    for _ in range(10):  # far more turns than it takes to reach an engine
        await asyncio.sleep(0)
    return tasks


async def test_a_group_stays_together_and_the_next_goes_where_less_is_open():
    one, two = Engine(), Engine()
    router = router_of(one=one, two=two)
    tasks = await started(router, ask("a1", 1), ask("a2", 1), ask("a3", 1), ask("b1", 2), ask("b2", 2))
    assert (one.open, two.open) == (["a1", "a2", "a3"], ["b1", "b2"])
    tasks += await started(router, ask("c1", 3))  # three against two
    assert two.open == ["b1", "b2", "c1"]
    one.let.set()
    two.let.set()
    await asyncio.gather(*tasks)


async def test_all_requests_of_a_lost_engine_raise_and_it_is_out():
    one, two = Engine(), Engine()
    router = router_of(one=one, two=two)
    lost = await started(router, ask("a1", 1), ask("a2", 1))
    kept = await started(router, ask("b1", 2))
    one.broken = True
    with pytest.raises(ModelUnavailable, match="broken"):
        await router.generate(ask("a3", 1))
    for task in lost:  # which would have waited for ever
        with pytest.raises(InfrastructureError, match="engine one was lost with request a"):
            await asyncio.wait_for(task, 5)
    assert router.live() == ["two"]
    kept += await started(router, ask("a1", 1))
    assert two.open == ["b1", "a1"]
    two.let.set()
    await asyncio.gather(*kept)


async def test_a_refused_request_costs_no_engine():
    class Refusing(Engine):
        async def generate(self, request: GenerateRequest) -> Generation:
            raise ConfigError("too long")

    router = router_of(one=Refusing())
    with pytest.raises(ConfigError):
        await router.generate(ask("a", 1))
    assert router.live() == ["one"]


async def test_an_engine_is_taken_back_with_the_current_weights():
    one, two = Engine(), Engine()
    router = router_of(one=one, two=two)
    one.broken = True
    await synchronise_weights([router], Path("/w/1"), 1, PauseMode.ABORT)
    assert router.live() == ["two"]
    one.broken = False
    await router.look()
    assert router.live() == ["one", "two"]
    assert await one.version() == 1
    assert one.calls[-1] == "resume"


async def test_an_engine_that_was_started_again_gets_the_current_weights_and_what_it_worked_on_raises():
    one = Engine()
    router = router_of(one=one)
    await synchronise_weights([router], Path("/w/3"), 3, PauseMode.ABORT)
    await router.look()
    (asked,) = await started(router, ask("a", 1))
    one._version = 0
    await router.look()
    with pytest.raises(ModelUnavailable, match="lost with request a"):
        await asked
    assert router.live() == []
    await router.look()
    assert router.live() == ["one"]
    assert (await one.version(), one.calls[-1]) == (3, "resume")


async def test_an_engine_that_comes_back_during_a_pause_waits_with_the_others():
    one, two = Engine(), Engine()
    router = router_of(one=one, two=two)
    one.broken = True
    await router.pause(PauseMode.RETRACT)
    one.broken = False
    await router.look()
    assert one.calls[-1] is PauseMode.RETRACT
    await router.load_weights(Path("/w/1"), 1)
    await router.resume()
    assert (one.calls[-2:], two.calls) == ([1, "resume"], [PauseMode.RETRACT, 1, "resume"])


async def test_a_new_engine_gets_the_weights_before_any_request():
    router = router_of(one=Engine())
    await router.load_weights(Path("/w/6"), 6)
    new = Engine()
    await router.add("two", new)
    assert await new.version() == 6
    assert router.live() == ["one", "two"]


async def test_a_replaced_engines_requests_raise():
    old, new = Engine(), Engine()
    router = router_of(one=old)
    (task,) = await started(router, ask("a", 1))
    await router.add("one", new)
    with pytest.raises(InfrastructureError):
        await task
    (task,) = await started(router, ask("a", 1))
    assert new.open == ["a"]
    new.let.set()
    await task


async def test_without_engines_a_request_waits_for_one_then_raises():
    router = router_of()
    with pytest.raises(ModelUnavailable, match="no rollout engine was left"):
        await router.generate(ask("a", 1))
    engine = Engine()
    engine.let.set()
    (task,) = await started(router, ask("b", 1))
    await router.add("late", engine)
    assert (await task).request_id == "b"


async def test_the_loss_of_an_engine_is_told_once():
    lost: list[str] = []
    engine = Engine()
    router = Router([("one", engine)], on_lost=lost.append)
    engine.broken = True
    await router.look()
    await router.look()
    assert lost == ["one"]


async def test_each_step_of_a_synchronisation_is_over_everywhere_before_the_next():
    calls: list[str] = []

    class Noting(Engine):
        def __init__(self, name: str, fails: str = "") -> None:
            super().__init__()
            self.name, self.fails = name, fails

        async def _do(self, call: object) -> None:
            step = {"resume": "resume", PauseMode.ABORT: "pause"}.get(call, "load")  # pyright: ignore[reportArgumentType]
            calls.append(f"{step} {self.name}")
            if step == self.fails:
                raise ModelUnavailable(self.name)

    engines = [Noting("a"), Noting("b", fails="load"), Noting("c")]
    report = await synchronise_weights(engines, Path("/w"), 1, PauseMode.ABORT)
    assert calls == [
        *("pause a", "pause b", "pause c"),
        *("load a", "load b", "load c"),
        *("resume a", "resume c"),
    ]
    assert list(report.failed) == [1]
