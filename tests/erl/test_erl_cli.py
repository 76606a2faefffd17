"""The `openmle-erl` command."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from openmle_erl.cli import main
from openmle_erl.rewards import entropic_advantages

from openmle_erl import __version__

LINES = [
    {"group": "a", "reward": 0.1, "id": 17},
    {"group": 7, "reward": 1},
    {"group": "a", "reward": 0.9},
    {"group": 7, "reward": 1},
    {"group": "a", "reward": None},
    {"group": "a", "reward": 0.4},
]


@pytest.fixture
def rewards(tmp_path: Path) -> Path:
    path = tmp_path / "rewards.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in LINES) + "\n\n")
    return path


def test_advantages_are_printed_in_input_order_with_a_report(rewards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advantages", str(rewards)]) == 0
    printed = json.loads(capsys.readouterr().out)
    low, high, middle = entropic_advantages([0.1, 0.9, 0.4], [0, 0, 0])
    np.testing.assert_allclose(printed["advantages"], [low, 0.0, high, 0.0, 0.0, middle])
    assert printed["kind"] == "entropic"
    assert [row["group"] for row in printed["groups"]] == ["a", 7]
    assert [row["no_signal"] for row in printed["groups"]] == [None, "equal_rewards"]
    assert printed["groups"][0]["masked"] == 1
    assert printed["summary"]["zero_variance_share"] == 0.5


def test_options_reach_the_advantages(rewards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def advantages(*options: str) -> list[float]:
        assert main(["advantages", str(rewards), *options]) == 0
        return json.loads(capsys.readouterr().out)["advantages"]

    np.testing.assert_allclose(advantages("--kind", "leave_one_out")[2], 0.9 - 0.25)
    spread = math.sqrt(((0.1 - 1.4 / 3) ** 2 + (0.9 - 1.4 / 3) ** 2 + (0.4 - 1.4 / 3) ** 2) / 2)
    np.testing.assert_allclose(advantages("--kind", "group_normalised")[2], (0.9 - 1.4 / 3) / (spread + 1e-6))
    assert advantages("--target-kl", "0.1")[2] < advantages()[2]
    assert advantages("--cap", "1.5")[2] == 1.5
    assert sum(advantages("--centre")) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b'{"group": 1, "reward": 0.5', "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1, 2]", "expected an object with group and reward, got list"),
        (b'{"group": 1}', "no reward"),
        (b"{}", "no group and no reward"),
        (b'{"group": null, "reward": 1}', "group must be a string or an integer, got None"),
        (b'{"group": true, "reward": 1}', "group must be a string or an integer, got True"),
        (b'{"group": 1, "reward": "0.5"}', "reward must be a number or null, got '0.5'"),
        (b'{"group": 1, "reward": true}', "reward must be a number or null, got True"),
        (b'{"group": 1, "reward": 1' + b"0" * 400 + b"}", "reward is too large"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(
    line: bytes, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"group": 1, "reward": 0.5}\n\n' + line + b"\n")
    assert main(["advantages", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"error: {path}:3: {complaint}" in captured.err


def test_a_file_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advantages", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl: No such file or directory" in capsys.readouterr().err


def test_an_empty_file_has_no_advantages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.jsonl"
    path.touch()
    assert main(["advantages", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["advantages"] == []


@pytest.mark.parametrize(
    "arguments", [["advantages", "x", "--target-kl", "0"], ["advantages", "x", "--cap", "nan"], []]
)
def test_misuse_is_a_usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: openmle-erl" in capsys.readouterr().err


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"openmle-erl {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sft", "corpus=none.jsonl", "out=out"], "corpus=none.jsonl: no such file"),
        (["sft", "corpus=README", "validation=none.jsonl", "out=out"], "validation=none.jsonl: no such file"),
        (["serve", "none"], "model=none: no such folder"),
        (["train", "rl_laptop", "tasks=[none]", "model=none", "run_dir=out"], "tasks: none: no task package there"),
        (["status", "none"], "none: holds no run"),
        (["sft-data", "build", "out=out", "collections=[none]"], "none: holds no collection"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_wrong_path_is_refused_before_torch_is_loaded(arguments: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "README").touch()
    script = "import sys; from openmle_erl.cli import main; print(main(sys.argv[1:]), 'torch' in sys.modules)"
    command = [sys.executable, "-c", script, *arguments]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    code, loaded = ended.stdout.split()
    assert said in ended.stderr
    assert (code in ("1", "2"), loaded) == (True, "False")
    assert not (tmp_path / "out").exists()
