"""Every family over real processes, two stages: the tokens that transformers makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.family_models import FAMILIES, VOCAB, WINDOW, save
from tests.process.asking import ask, of_ids
from tests.process.harness import started, write_config
from tests.reference import prompt_of, reference
from zpd.config import load

END = 2  # the id that ends an answer of these models
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
            want, _, _ = reference(model, prompt, 12)
            answer = ask(topology, of_ids(prompt, 12)).answer
            assert answer.outcome.ok, answer
            end = next((i + 1 for i, token in enumerate(want) if token == END), len(want))
            assert answer.token_ids == want[:end]
