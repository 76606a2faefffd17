"""The local server that `openmle-erl train` starts for itself."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from openmle_erl.rl.commands import load_profile
from openmle_erl.rl.opening import open_engine
from openmle_gym.errors import ConfigError, ModelUnavailable


def children() -> set[int]:
    """The processes that this one has started."""
    return {
        int(pid)
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text(encoding="utf-8").split()
    }


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="reads /proc")
async def test_a_local_server_that_dies_ends_the_run_and_one_that_does_not_ends_with_it(
    tiny_dense: Path, tmp_path: Path
) -> None:
    config = load_profile("rl_smoke", ["tasks=[]", f"run_dir={tmp_path}", f"model={tiny_dense}"])
    before = children()

    async def whose_user_fails() -> None:
        async with open_engine(config) as engine:
            assert await engine.version() == 0
            raise ConfigError("of whoever uses it")

    async def whose_server_dies() -> None:
        async with open_engine(config):
            (server,) = children() - before
            os.kill(server, signal.SIGKILL)
            await asyncio.Event().wait()

    with pytest.raises(ConfigError, match="of whoever uses it"):
        await whose_user_fails()
    assert children() == before
    with pytest.raises(ModelUnavailable, match="the local server ended with -9; the same command goes on"):
        await whose_server_dies()
