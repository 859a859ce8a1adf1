"""What the engines are held against: transformers' greedy tokens, and the KV that lands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from nodes.engine.solo import Solo


def prompt_of(length: int, vocab: int = 211, seed: int = 0) -> list[int]:
    return np.random.default_rng([seed, length]).integers(0, vocab, length).tolist()


@torch.no_grad()
def reference(path: Path, prompt: list[int], n: int) -> tuple[list[int], np.ndarray, float]:
    """transformers' greedy tokens, its logits behind the prompt, and the smallest top-2 margin."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False,
        eos_token_id=None, pad_token_id=0, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    logits = torch.cat(out.logits)
    top = logits.topk(2).values
    return out.sequences[0, len(prompt) :].tolist(), logits[0].numpy(), margin(top)


def ended(path: Path, prompt: list[int], n: int, end: int) -> list[int]:
    """transformers' greedy tokens up to the first ``end``, which is the last one."""
    tokens, _, _ = reference(path, prompt, n)
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


def margin(top: torch.Tensor) -> float:
    return float((top[:, 0] - top[:, 1]).min())


def landed(solo: Solo, prompt: list[int], layers: int) -> np.ndarray:
    """What lands of a prompt, whoever wrote it: [layers, 2, kv_heads, n, head_dim], as bits."""
    by_layer: list[list[np.ndarray]] = [[] for _ in range(layers)]
    for first_layer, _, k, v in solo.prefill(prompt)[1]:
        for i in range(k.shape[0]):
            by_layer[first_layer + i].append(np.stack([k.numpy()[i], v.numpy()[i]]))
    kv = np.stack([np.concatenate(parts, axis=2) for parts in by_layer])
    return kv.view(f"u{kv.itemsize}")
