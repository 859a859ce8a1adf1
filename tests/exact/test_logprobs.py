"""Log-probabilities of a greedy answer are transformers' log-softmax, from the first token on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from nodes.engine.solo import NoProgress, Solo
from nodes.models.spec import read_spec
from nodes.sampling import Sampler
from tests.expected import Reference
from tests.family_models import LAYERS, VOCAB, save
from tests.plans import plan
from tests.reference import prompt_of
from zpd.requests import Sampling
from zpd.topology import Topology

K, CLOSE = 5, 1e-3


def answered(topology: Topology, prompt: Sequence[int], n: int) -> list[tuple[np.ndarray, ...]]:
    """The values and ids of each of ``n`` tokens, which are greedy but for a penalty and a bias."""
    how = Sampling(logprobs=K, presence_penalty=0.5)
    solo, quiet, sampler = Solo(topology), NoProgress(), Sampler(how, prompt)
    hidden = solo._fill(prompt)
    solo._decode.import_slot(0, 0, prompt, sampler, quiet)
    solo._decode.first(0, hidden, quiet)
    found = [sampler.logprobs]
    for _ in range(n - 1):
        solo._decode.step([0], quiet)
        found.append(sampler.logprobs)
    return [row for row in found if row is not None]


@torch.no_grad()
def check(path: Path, topology: Topology, prompt: Sequence[int], n: int) -> None:
    found = answered(topology, prompt, n)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    whole = torch.tensor([[*prompt, *(int(ids[0]) for _, ids in found)]])
    want = model(whole).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    assert len(found) == len(want) == n
    for (values, ids), row in zip(found, want.numpy(), strict=True):
        np.testing.assert_allclose(values, row[ids], atol=CLOSE, rtol=0)
        likeliest = np.argsort(-row, kind="stable")[:K]
        np.testing.assert_allclose(row[ids[1:]], row[likeliest], atol=CLOSE, rtol=0)


def test_of_a_small_model(tmp_path: Path) -> None:
    path = save("gemma3", tmp_path / "model")
    check(path, plan(str(path), (0, 2), (2, LAYERS), chunk=8), prompt_of(20, VOCAB), 12)


@pytest.mark.full
def test_of_the_default_model(smollm: Path, reference: Reference) -> None:
    layers = read_spec(smollm).layers
    topology = plan(str(smollm), (0, 11), (11, layers), chunk=128, max_tokens=512)
    check(smollm, topology, reference.prompts()["chat: sky"], 32)
