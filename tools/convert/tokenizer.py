"""GGUF file -> tokenizer.json, tokenizer_config.json and chat_template.jinja.

``tokenizer.ggml.model`` says which kind of tokenizer it is: a row of ``_MODELS``.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, processors

from nodes.models.directory import TOKENIZER
from tools.convert import byte_level, sentence_piece
from tools.convert.gguf_file import GgufFile
from tools.convert.vocabulary import Kind, Vocabulary

_MODELS = {"gpt2": byte_level.build, "llama": sentence_piece.build}


def write_tokenizer(gguf: GgufFile, target: Path) -> None:
    """Write the tokenizer's files into the directory ``target``. UserError where not supported."""
    build = _MODELS.get(gguf.get("tokenizer.ggml.model"))
    if build is None:
        raise gguf.wrong("tokenizer.ggml.model", ", ".join(_MODELS))
    if gguf.get("tokenizer.ggml.add_eos_token", False):
        raise gguf.wrong("tokenizer.ggml.add_eos_token", "false")
    words = Vocabulary.read(gguf)
    tokenizer, begins = build(gguf, words)
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind == Kind.CONTROL, normalized=False)
            for token, kind in zip(words.tokens, words.kinds, strict=True)
            if kind in (Kind.CONTROL, Kind.USER_DEFINED)
        ]
    )
    names = {
        key: words.tokens[i]
        for key, i in (
            ("bos_token", gguf.get("tokenizer.ggml.bos_token_id")),
            ("eos_token", gguf.get("tokenizer.ggml.eos_token_id")),
            ("unk_token", gguf.get("tokenizer.ggml.unknown_token_id")),
            ("pad_token", gguf.get("tokenizer.ggml.padding_token_id")),
        )
        if i is not None
    }
    if gguf.get("tokenizer.ggml.add_bos_token", begins):
        if "bos_token" not in names:
            raise gguf.wrong("tokenizer.ggml.bos_token_id", "an id, as a prompt begins with it")
        bos = names["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A",
            pair=f"{bos} $A {bos} $B",
            special_tokens=[(bos, words.tokens.index(bos))],
        )
    tokenizer.save(str(target / TOKENIZER))

    template = gguf.get("tokenizer.chat_template")
    if template is not None:
        (target / "chat_template.jinja").write_text(template, encoding="utf-8", newline="")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": gguf.get(f"{gguf.need('general.architecture')}.context_length"),
        **names,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (target / "tokenizer_config.json").write_text(text, encoding="utf-8")
