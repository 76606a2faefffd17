"""`scripts/gpu_checks.py` in small, on the CPU: that it runs to its end. Its figures mean nothing there."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("megatron.core")

SCRIPT = Path(__file__).parents[3] / "scripts" / "gpu_checks.py"


@pytest.mark.slow
def test_the_gpu_checks_measure_both_steps_of_both_engines_on_both_models():
    command = [sys.executable, str(SCRIPT), "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split() for line in done.stdout.splitlines()[2:]]
    names = [(model, engine, step) for model, engine, step, *_ in rows]
    assert names == [
        (model, engine, step)
        for model in ("dense", "MoE")
        for engine in ("torch", "megatron")
        for step in ("GSPO", "SFT")
    ]
    assert all(float(seconds) > 0.0 and float(speed) > 0.0 for _, _, _, seconds, speed, *_ in rows)
