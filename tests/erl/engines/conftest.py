"""Tiny models on disk, made once."""

from pathlib import Path

import pytest

TEXTS = ["import numpy as np\nprint(np.mean([1, 2, 3]))\n", "for row in range(10):\n    print(row)\n"] * 4


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two models of the same shapes with different weights."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from openmle_erl.engines.tiny import save_tiny

    root = tmp_path_factory.mktemp("tiny")
    one = save_tiny(root / "one", TEXTS, vocab_size=300, context=1024, seed=1)
    two = save_tiny(root / "two", TEXTS, vocab_size=300, context=1024, seed=2)
    return one, two
