"""Every family over real processes, two stages: the tokens that transformers makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.family_models import END, FAMILIES, VOCAB, WINDOW, save
from tests.process.asking import ask, of_ids
from tests.process.harness import started, write_config
from tests.reference import ended, prompt_of
from zpd.config import load

LENGTHS = (3, 3 * WINDOW + 2)
QUICK = "gemma3"  # it has every part that any other has, but for biases and Llama 3's rope


@pytest.mark.parametrize(
    "name",
    [name if name == QUICK else pytest.param(name, marks=pytest.mark.full) for name in FAMILIES],
)
def test_two_stages_answer_as_transformers_does(name: str, tmp_path: Path, home: Path) -> None:
    model = save(name, tmp_path / "model")
    sections = {"prefill": {"chunk": 8}}
    config = write_config(
        tmp_path, model={"name": str(model), "max_tokens": 128}, sections=sections
    )
    topology = load(config)
    with started(config, tmp_path / "run"):
        for length in LENGTHS:
            prompt = prompt_of(length, VOCAB)
            answer = ask(topology, of_ids(prompt, 12)).answer
            assert answer.outcome.ok, answer
            assert answer.token_ids == ended(model, prompt, 12, END)
