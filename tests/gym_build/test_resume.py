"""A build that is killed at every boundary of its stages ends as if it had not been, and nobody is asked twice."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from gym_build.made_up import METRIC, PREPARE, SPEC_FIELDS, code_reply, houses, json_reply
from gym_build.scripted_kaggle import Kaggle, serve_kaggle, zipped
from gym_build.scripted_model import serve_model
from openmle_gym.build.state import BuildState
from openmle_gym.task import load_package

STAGES = ["fetch", "unpack", "profile", "task/describe", "task/prepare", "task/metric", "task/verify"]
BUILD_THEN_DIE = """
import asyncio, os, signal, sys
from pathlib import Path
from openmle_gym.build import BuildRequest, build_package, parse_source
from openmle_gym.chat import OpenAIChat
from openmle_gym.isolation.process import ProcessRunner

folder, url = Path(sys.argv[1]), sys.argv[2]


def progress(stage, record, was_done):
    if not was_done:
        print(stage, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


async def build():
    request = BuildRequest(source=parse_source("competition:some-houses"), work=folder / "work", output=folder / "tasks")
    async with OpenAIChat(url, model="scripted", patience_seconds=0.0) as model:
        runner = ProcessRunner(allow_no_isolation=True)
        report = await build_package(request, model=model, runner=runner, progress=progress)
    assert report.ok, report


asyncio.run(build())
"""


@pytest.mark.slow
def test_a_build_killed_after_every_stage_does_nothing_twice(tmp_path: Path) -> None:
    known = Kaggle(competitions={"some-houses": zipped({"train.csv": houses()})})
    script = {
        "describe": [json_reply(SPEC_FIELDS)],
        "prepare": [code_reply(PREPARE)],
        "metric": [code_reply(METRIC)],
    }
    died_after = []
    with serve_kaggle(known), serve_model({name: list(replies) for name, replies in script.items()}) as model:
        environment = {
            **{name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ},
            **known.environment(),
            **dict.fromkeys(("HOME", "KAGGLE_CONFIG_DIR"), str(tmp_path)),
        }
        command = [sys.executable, "-c", BUILD_THEN_DIE, str(tmp_path), model.base_url]
        for _ in range(len(STAGES)):
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == -9, done.stderr
            died_after += done.stdout.split()
        assert died_after == STAGES
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert Counter(stage for stage, _ in model.prompts) == {"describe": 1, "prepare": 1, "metric": 1}
    assert Counter(known.log) == {
        "DownloadDataFiles some-houses": 1,
        "GET some-houses": 1,
        "ListCompetitionPages some-houses": 1,
        "DownloadLeaderboard some-houses": 1,
    }
    state = BuildState.model_validate_json((tmp_path / "work/state.json").read_bytes())
    assert [(name, record.status) for name, record in state.stages.items()] == [(name, "done") for name in STAGES]
    assert load_package(tmp_path / "tasks/some-houses").name == "some-houses"
