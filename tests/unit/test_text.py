"""Text -> ids -> text: the whole answer comes out, no half character, no piece of a stop string."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders

from nodes.detokenise import Detokeniser
from nodes.text import Text, TokenizerText, check_messages
from tests.tiny_model import CONFIG, tokenizer, write_directory
from zpd.errors import UserError

FAMILY = "👨‍👩‍👧‍👦"  # seven code points, 25 bytes
TRICKY = [
    "",
    "a",
    "hello hello",
    "안녕하세요",
    FAMILY,
    "🇰🇷👍🏽",
    "é" + "e\u0301",
    "\ufffd",
    " \n\t",
]
texts = st.lists(st.sampled_from(TRICKY) | st.text(max_size=4), max_size=6).map("".join)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_directory(tmp_path_factory.mktemp("text") / "tiny")


@pytest.fixture(scope="module")
def text(path: Path) -> Iterator[Text]:
    made = Text.load(str(path))
    yield made
    made.close()


def decoded(reference: Tokenizer, ids: list[int]) -> str:
    return str(reference.decode(ids, skip_special_tokens=True))


def cut(whole: str, stop: tuple[str, ...]) -> tuple[str, bool]:
    """Character by character: the first end of a stop string; of two, the longer."""
    for end in range(1, len(whole) + 1):
        ending = [s for s in stop if whole[:end].endswith(s)]
        if ending:
            return whole[: end - max(map(len, ending))], True
    return whole, False


def pushed(detokeniser: Detokeniser, ids: list[int], cuts: list[int]) -> tuple[str, bool, int]:
    """Push ``ids`` in the groups that ``cuts`` make, then the end."""
    out, kept, stopped = "", 0, False
    for start, end in itertools.pairwise([0, *sorted(cuts), len(ids)]):
        delta, stopped, n = detokeniser.push(ids[start:end])
        out, kept = out + delta, kept + n
    delta, stopped, n = detokeniser.push((), final=True)
    return out + delta, stopped, kept + n


@settings(derandomize=True, deadline=None, max_examples=400)
@given(data=st.data(), said=texts)
def test_joined_pieces_are_the_answer_cut_at_its_stop_string(
    text: Text, data: st.DataObject, said: str
) -> None:
    reference = tokenizer()
    ids = text.encode_raw(said)
    # what a model may do: special tokens, unknown ids, bytes that are no character
    noise = st.lists(st.integers(0, CONFIG["vocab_size"] + 5), max_size=3)
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, len(ids)))
        ids[at:at] = data.draw(noise)
    whole = decoded(reference, ids)
    inside = st.tuples(st.integers(0, len(whole)), st.integers(1, 6)).map(
        lambda p: whole[p[0] : p[0] + p[1]] or "x"
    )
    stop = tuple(data.draw(st.lists(inside | st.text(min_size=1, max_size=3), max_size=3)))
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=8))

    expected, stops = cut(whole, stop)
    out, stopped, kept = pushed(text.detokeniser(stop), ids, cuts)
    assert (out, stopped) == (expected, stops)
    if not stops:
        assert kept == len(ids)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(said=texts, stop=st.lists(st.text(min_size=1, max_size=4), max_size=2).map(tuple))
def test_what_went_out_is_never_taken_back(text: Text, said: str, stop: tuple[str, ...]) -> None:
    ids = text.encode_raw(said)
    expected, _ = cut(said, stop)
    detokeniser, out = text.detokeniser(stop), ""
    for token in ids:
        out += detokeniser.push([token])[0]
        assert expected.startswith(out)
    assert out + detokeniser.push((), final=True)[0] == expected


@pytest.mark.parametrize("said", ["안녕", FAMILY, "🇰🇷", "한👍🏽글"])
def test_no_half_character_comes_out(text: Text, said: str) -> None:
    ids = text.encode_raw(said)
    assert len(ids) > len(said)
    detokeniser = text.detokeniser()
    pieces = [detokeniser.push([token])[0] for token in ids]
    assert "".join(pieces) == said
    assert "\ufffd" not in "".join(pieces)
    assert pieces.count("") == len(ids) - len(said)


def test_a_character_that_never_ends_shows_at_the_end_only(text: Text) -> None:
    ids = text.encode_raw("ok 👍")[:-1]
    detokeniser = text.detokeniser()
    assert detokeniser.push(ids) == ("ok ", False, len(ids))
    assert detokeniser.push((), final=True) == ("\ufffd", False, 0)


@pytest.mark.parametrize("tokens", [2, 3, 4, 5])
def test_a_stop_string_over_several_tokens_never_leaks(text: Text, tokens: int) -> None:
    stop = "xyzvw"[:tokens]
    before, after = text.encode_raw("one "), text.encode_raw(" two")
    over = text.encode_raw(stop)
    assert len(over) == tokens
    detokeniser = text.detokeniser((stop,))
    assert detokeniser.push(before)[0] == "one "
    for token in over[:-1]:
        assert detokeniser.push([token]) == ("", False, 1)
    assert detokeniser.push([over[-1], *after]) == ("", True, 1)
    assert detokeniser.push(after, final=True) == ("", True, 0)


def test_the_beginning_of_a_stop_string_comes_out_once_it_is_none(text: Text) -> None:
    detokeniser = text.detokeniser(("STOP", "TOO"))
    assert detokeniser.push(text.encode_raw("a STO")) == ("a ", False, 5)
    assert detokeniser.push(text.encode_raw("O!")) == ("S", True, 1)
    detokeniser = text.detokeniser(("STOP",))
    detokeniser.push(text.encode_raw("STO"))
    assert detokeniser.push((), final=True) == ("STO", False, 0)


def test_an_empty_stop_string_is_refused(text: Text) -> None:
    with pytest.raises(UserError, match="must not be empty"):
        text.detokeniser(("a", ""))


def test_special_tokens_are_known_in_prompts_and_absent_from_answers(text: Text) -> None:
    ids = text.encode_raw("<|im_start|>hello<|im_end|>")
    assert (ids[0], ids[-1]) == (1, 2)
    assert len(ids) == 3
    assert text.detokeniser().push(ids, final=True)[0] == "hello"
    assert text.eos_ids == (2,)
    assert text.vocab_size == CONFIG["vocab_size"]


def test_chat_is_the_template_then_the_tokenizer(text: Text) -> None:
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "안"}]
    prompt = "<|im_start|>user\nhello<|im_end|><|im_start|>assistant\n안<|im_end|>"
    prompt += "<|im_start|>assistant\n"
    assert text.encode_chat(messages) == text.encode_raw(prompt)


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ([], "at least one"),
        ("hello", "a list"),
        ({"role": "user"}, "a list"),
        (["hello"], r"messages\[0\]"),
        ([{"role": "user", "content": "x"}, {"role": "user"}], r"messages\[1\]\.content"),
        ([{"role": 1, "content": "x"}], r"messages\[0\]\.role"),
        ([{"role": "user", "content": ["x"]}], r"messages\[0\]\.content"),
    ],
)
def test_messages_that_are_none_are_named(messages: object, named: str) -> None:
    with pytest.raises(UserError, match=named) as error:
        check_messages(messages)
    assert "hello" not in str(error.value), "a refusal is logged, and no prompt is"


@pytest.mark.parametrize("model", ["tiny", "toy"])
def test_half_a_surrogate_pair_is_refused(text: Text, model: str) -> None:
    side = text if model == "tiny" else Text.load("toy")
    with pytest.raises(UserError, match=r"'\\ud800' at 1"):
        side.encode_raw("a\ud800")
    with pytest.raises(UserError, match="surrogate"):
        side.encode_chat([{"role": "user", "content": "\udfff"}])


def test_a_long_prompt_is_not_cut(path: Path) -> None:
    limited = Tokenizer.from_file(str(path / "tokenizer.json"))
    limited.enable_truncation(8)
    limited.enable_padding(length=16)
    limited.save(str(path / "tokenizer.json"))
    side = TokenizerText(path)
    assert len(side.encode_raw("a b " * 50_000)) == 200_000
    assert len(side.encode_raw("a")) == 1


def test_a_tokenizer_that_is_not_byte_level_is_refused(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "m")
    other = tokenizer()
    other.decoder = decoders.Metaspace()
    other.save(str(path / "tokenizer.json"))
    with pytest.raises(UserError, match="decoder = 'Metaspace': not supported"):
        TokenizerText(path)
    (path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json: cannot be read"):
        TokenizerText(path)


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "m")
    larger = tokenizer()
    larger.add_tokens(["one more"])
    larger.save(str(path / "tokenizer.json"))
    with pytest.raises(UserError, match=r"has 267 tokens; allowed: at most .* 266"):
        TokenizerText(path)


def test_a_model_without_a_template_takes_raw_prompts_only(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "m")
    (path / "chat_template.jinja").unlink()
    side = TokenizerText(path)
    assert side.encode_raw("hello")
    with pytest.raises(UserError, match="no chat template"):
        side.encode_chat([{"role": "user", "content": "hello"}])


@settings(derandomize=True, deadline=None, max_examples=100)
@given(said=texts)
def test_toy_ids_are_bytes(said: str) -> None:
    toy = Text.load("toy")
    assert bytes(toy.encode_raw(said)) == said.encode()
    assert toy.detokeniser().push(toy.encode_raw(said), final=True)[0] == said
    assert (toy.eos_ids, toy.vocab_size) == ((), 256)
    chat = toy.encode_chat([{"role": "user", "content": said}])
    assert bytes(chat).decode() == f"user: {said}\nassistant: "


def test_text_needs_neither_torch_nor_transformers(path: Path) -> None:
    code = (
        "import sys; from nodes.text import Text\n"
        "Text.load(sys.argv[1]).encode_chat([{'role': 'user', 'content': 'x'}])\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
