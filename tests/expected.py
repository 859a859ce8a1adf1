"""What ``transformers`` makes of the fixed prompts: token ids, answers, margins."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.prompts import CHAT, RAW


class Reference:
    """A model directory in float32, greedy, ending at the model's own end-of-sequence ids.

    Answers are kept, so that no two tests of a session pay for the same one.
    """

    def __init__(self, path: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(path)
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.answer = cache(self._answer)

    def prompts(self) -> dict[str, tuple[int, ...]]:
        """The ids of every fixed prompt by name; chats as the model's own template writes them."""
        found = {name: self._tokenizer(text).input_ids for name, text in RAW.items()}
        for name, text in CHAT.items():
            said = self._tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
            )
            found[f"chat: {name}"] = self._tokenizer(said, add_special_tokens=False).input_ids
        return {name: tuple(ids) for name, ids in found.items()}

    @torch.no_grad()
    def _answer(self, prompt: tuple[int, ...], n: int) -> tuple[list[int], float]:
        """At most ``n`` tokens, and the smallest top-2 margin of the logits on the way."""
        ids = torch.tensor([prompt])
        out = self._model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False,
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
        top = torch.cat(out.logits).topk(2).values
        return out.sequences[0, len(prompt) :].tolist(), float((top[:, 0] - top[:, 1]).min())


def said(name: str) -> tuple[str, str]:
    """The ``kind`` and text of an Ask for the fixed prompt ``name``."""
    if name in RAW:
        return "raw", RAW[name]
    content = CHAT[name.removeprefix("chat: ")]
    return "chat", json.dumps([{"role": "user", "content": content}])
