"""SentencePiece's BPE out of a GGUF file: ids by the scores; no half character on the way back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders

from nodes.text import Text, TokenizerText
from tests.score_bpe import ScoreBpe
from tests.tiny_model import write_config
from tools.convert.gguf_file import GgufFile
from tools.convert.tokenizer import write_tokenizer
from zpd.errors import UserError

CONTROL = ("<pad>", "<eos>", "<bos>")
DEFINED = ("\n", "\n\n", "  ", "   ", "<b>")
# in the order of their scores; some can be made in two ways, some only out of others
NORMAL = (
    "\u2581a", "aa", "ab", "ba", "aba", "\u2581aba", "aaa", "aaaa", "bb", "abba", "\u2581", "a",
    "b", "h", "e", "he", "l", "o", "lo", "안", "\u2581안", "한",
)  # fmt: skip
TOKENS = [*CONTROL, *DEFINED, *(f"<0x{byte:02X}>" for byte in range(256)), *NORMAL]
KINDS = [3] * len(CONTROL) + [4] * len(DEFINED) + [6] * 256 + [1] * len(NORMAL)
SCORES = [-1000.0] * (len(TOKENS) - len(NORMAL)) + [-float(i) for i in range(len(NORMAL))]
PARTS = [*NORMAL, *DEFINED, "<eos>", " ", "z", "👨‍👩‍👧", "é", "안녕", "<0x41>", "ÿ", "\ufffd"]
texts = st.lists(st.sampled_from(PARTS) | st.text(max_size=3), max_size=12).map("".join)


def write_file(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_types(KINDS)
    writer.add_token_scores(SCORES)
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    writer.add_add_space_prefix(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("piece")
    write_config(made, vocab_size=len(TOKENS))
    write_tokenizer(GgufFile(write_file(made / "x.gguf")), made)
    return made


@pytest.fixture(scope="module")
def text(path: Path) -> Iterator[Text]:
    side = TokenizerText(path)
    yield side
    side.close()


@settings(derandomize=True, deadline=None, max_examples=500)
@given(said=texts)
def test_ids_are_the_references_and_come_back_as_the_text(text: Text, said: str) -> None:
    ids = text.encode_raw(said)
    assert ids == ScoreBpe(TOKENS, SCORES, KINDS, bos=2).encode(said)
    detokeniser = text.detokeniser()
    out = "".join(detokeniser.push([token])[0] for token in ids)
    out += detokeniser.push((), final=True)[0]
    assert out == said.replace("<eos>", "").replace("\u2581", " ")


@settings(derandomize=True, deadline=None, max_examples=200)
@given(said=texts)
def test_whole_characters_decode_as_the_library_does(path: Path, text: Text, said: str) -> None:
    ids = text.encode_raw(said)
    theirs = Tokenizer.from_file(str(path / "tokenizer.json")).decode(ids)
    assert text.detokeniser().push(ids, final=True)[0] == theirs


def test_no_half_character_comes_out(text: Text) -> None:
    said = "안👩‍👧é"
    ids = text.encode_raw(said)[1:]
    assert len(ids) > len(said)
    detokeniser = text.detokeniser()
    pieces = [detokeniser.push([token])[0] for token in ids]
    assert "".join(pieces) == said
    assert pieces.count("") == len(ids) - len(said)
    assert "\ufffd" not in "".join(pieces)


def test_a_character_that_never_ends_shows_at_the_end_only(text: Text) -> None:
    ids = text.encode_raw("a 👩")[1:-1]
    detokeniser = text.detokeniser()
    assert detokeniser.push(ids) == ("a ", False, len(ids))
    assert detokeniser.push((), final=True) == ("\ufffd", False, 0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizer.ggml.add_space_prefix", True),
        ("tokenizer.ggml.remove_extra_whitespaces", True),
        ("tokenizer.ggml.precompiled_charsmap", [1]),
        ("tokenizer.ggml.scores", [0.0]),
        ("tokenizer.ggml.token_type", [1] * len(TOKENS)),
        ("tokenizer.ggml.token_type", [9] * len(TOKENS)),
        ("tokenizer.ggml.token_type", [1]),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: Any
) -> None:
    file = GgufFile(write_file(tmp_path / "x.gguf"))
    real = GgufFile.get

    def get(self: GgufFile, asked: str, default: Any = None) -> Any:
        return value if asked == key else real(self, asked, default)

    monkeypatch.setattr(GgufFile, "get", get)
    with pytest.raises(UserError, match=f"{key} = .*not supported; allowed: "):
        write_tokenizer(file, tmp_path)


def test_another_decoder_is_refused_by_name(path: Path, tmp_path: Path) -> None:
    write_config(tmp_path, vocab_size=len(TOKENS))
    other = Tokenizer.from_file(str(path / "tokenizer.json"))
    other.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Strip(" ", 1, 0)])
    other.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match=r"decoder = 'ByteFallback \+ Strip': not supported"):
        TokenizerText(tmp_path)


def test_a_special_token_beyond_the_model_is_refused_in_a_prompt_only(
    path: Path, tmp_path: Path
) -> None:
    write_config(tmp_path, vocab_size=len(TOKENS))
    larger = Tokenizer.from_file(str(path / "tokenizer.json"))
    larger.add_special_tokens(["<image>"])
    larger.save(str(tmp_path / "tokenizer.json"))
    side = TokenizerText(tmp_path)
    assert side.encode_raw("he") == [2, TOKENS.index("he")]
    with pytest.raises(UserError, match="prompt: has <image>, a special token that this model"):
        side.encode_raw("a <image>")
