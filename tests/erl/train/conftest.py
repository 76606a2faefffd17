"""Tiny models, made once."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(scope="session")
def tiny_dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from erl.train.train_make import TEXTS, VOCABULARY
    from openmle_erl.engines.tiny import save_tiny

    return save_tiny(tmp_path_factory.mktemp("tiny") / "dense", TEXTS, vocab_size=VOCABULARY)


@pytest.fixture(scope="session")
def tiny_moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from erl.train.train_make import TEXTS, VOCABULARY
    from openmle_erl.engines.tiny import save_tiny

    return save_tiny(tmp_path_factory.mktemp("tiny") / "moe", TEXTS, vocab_size=VOCABULARY, experts=4)
