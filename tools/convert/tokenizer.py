"""GGUF file -> tokenizer.json, tokenizer_config.json and chat_template.jinja.

Supported: byte-level BPE (``tokenizer.ggml.model = gpt2``). How text is cut before the merges
apply is a name in the file, ``tokenizer.ggml.pre``, and a row of ``_CUTS`` here.
"""

from __future__ import annotations

import json
from enum import IntEnum
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE

from nodes.models.directory import TOKENIZER
from tools.convert.gguf_file import GgufFile


class _Kind(IntEnum):
    """Values of ``tokenizer.ggml.token_type``."""

    NORMAL = 1
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5


_CUTS = {
    "smollm": lambda: pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    ),
}


def write_tokenizer(gguf: GgufFile, target: Path) -> None:
    """Write the tokenizer's files into the directory ``target``. UserError where not supported."""
    if gguf.get("tokenizer.ggml.model") != "gpt2":
        raise gguf.wrong("tokenizer.ggml.model", "gpt2")
    cut = _CUTS.get(gguf.get("tokenizer.ggml.pre", ""))
    if cut is None:
        raise gguf.wrong("tokenizer.ggml.pre", ", ".join(sorted(_CUTS)))
    tokens: list[str] = gguf.need("tokenizer.ggml.tokens")
    kinds: list[int] = gguf.get("tokenizer.ggml.token_type", [_Kind.NORMAL] * len(tokens))
    if not set(kinds) <= set(_Kind):
        raise gguf.wrong("tokenizer.ggml.token_type", ", ".join(str(int(k)) for k in _Kind))
    merges = [tuple(merge.split(" ")) for merge in gguf.need("tokenizer.ggml.merges")]

    tokenizer = Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = cut()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind == _Kind.CONTROL, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in (_Kind.CONTROL, _Kind.USER_DEFINED)
        ]
    )
    names = {
        key: tokens[i]
        for key, i in (
            ("bos_token", gguf.get("tokenizer.ggml.bos_token_id")),
            ("eos_token", gguf.get("tokenizer.ggml.eos_token_id")),
            ("unk_token", gguf.get("tokenizer.ggml.unknown_token_id")),
            ("pad_token", gguf.get("tokenizer.ggml.padding_token_id")),
        )
        if i is not None
    }
    if gguf.get("tokenizer.ggml.add_bos_token", False):
        bos = names["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A",
            pair=f"{bos} $A {bos} $B",
            special_tokens=[(bos, tokens.index(bos))],
        )
    tokenizer.save(str(target / TOKENIZER))

    template = gguf.get("tokenizer.chat_template")
    if template is not None:
        (target / "chat_template.jinja").write_text(template, encoding="utf-8", newline="")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": gguf.get("llama.context_length"),
        **names,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (target / "tokenizer_config.json").write_text(text, encoding="utf-8")
