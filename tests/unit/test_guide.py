"""Guides over the toy's bytes: what they allow, how they end, what is refused."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest

from nodes.guide import TOY_END, Guide, Guides
from nodes.sampling import Sampler
from zpd.errors import UserError
from zpd.requests import Sampling

GUIDES = Guides("toy")
FLAT = np.zeros(256, np.float32)


def guide(kind: str, value: object = None) -> Guide:
    return GUIDES.make(json.dumps({"kind": kind, "value": value}))


def answer(guide: Guide, seed: int, **how: int) -> bytes:
    """Drawn among all that is allowed, up to the end."""
    sampler = Sampler(Sampling(temperature=1.0, seed=seed, **how), [1])
    sampler.guide = guide
    tokens: list[int] = []
    while not tokens or not sampler.finish(tokens[-1], 200):
        tokens.append(sampler.pick(FLAT, 1 + len(tokens)))
    assert not sampler.failed
    assert tokens[-1] == TOY_END and sampler.finish(tokens[-1], 200) == "stop"
    return bytes(tokens[:-1])


def test_a_regex_is_matched_whole_and_ends_the_answer() -> None:
    said = {answer(guide("regex", "(yes|no)!"), seed) for seed in range(20)}
    assert said == {b"yes!", b"no!"}


def test_a_guide_that_may_end_or_go_on_leaves_both() -> None:
    said = [answer(guide("regex", "ab*"), seed) for seed in range(20)]
    assert all(s == b"a" + b"b" * (len(s) - 1) for s in said) and len(set(said)) > 2


def test_min_tokens_forbid_the_end_of_a_guide_that_can_go_on_and_of_no_other() -> None:
    assert all(len(answer(guide("regex", "ab*"), seed, min_tokens=6)) >= 6 for seed in range(9))
    assert answer(guide("regex", "ab?"), 3, min_tokens=6) in (b"a", b"ab")


@pytest.mark.parametrize(
    "text", ['start: "a" ("," "a")* "."', 'root ::= "a" ("," "a")* "."'], ids=["lark", "gbnf"]
)
def test_a_grammar_in_either_language(text: str) -> None:
    for seed in range(9):
        said = answer(guide("grammar", text), seed).decode()
        assert said.endswith(".") and set(said[:-1].split(",")) == {"a"}


@pytest.mark.parametrize("as_text", [False, True])
def test_a_schema_as_it_is_or_as_text(as_text: bool) -> None:
    schema = {
        "type": "object", "required": ["a", "b"], "additionalProperties": False,
        "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x"]}},
    }  # fmt: skip
    value = json.dumps(schema) if as_text else schema
    for seed in range(9):
        text = answer(guide("json_schema", value), seed).decode()
        said = json.loads(text)
        assert text == json.dumps(said)  # one line, as Python writes it
        assert 0 <= said["a"] <= 99 and said["b"] == "x" and len(said) == 2


def test_json_object_begins_with_a_brace() -> None:
    assert np.flatnonzero(guide("json_object").allowed()).tolist() == [ord("{")]


def test_equal_tokens_so_far_allow_equal_tokens() -> None:
    one, other = guide("regex", "(a|bc)+"), guide("regex", "(a|bc)+")
    for token in b"abcbc":
        np.testing.assert_array_equal(one.allowed(), other.allowed())
        one.take(token)
        other.take(token)


def test_a_token_that_was_not_allowed_fails_the_guide_and_says_so() -> None:
    broken = guide("regex", "abc")
    broken.take(ord("x"))
    assert broken.failed
    sampler = Sampler(Sampling(), [1])
    sampler.guide = broken
    sampler.pick(FLAT, 1)
    assert sampler.failed == broken.failed


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("{", "guide: not JSON"),
        ("[" * 9000, "guide: not JSON"),
        ("[]", "guide: kind = None: must be one of json_object"),
        ('{"kind": "xml"}', "guide: kind = 'xml'"),
        ('{"kind": "regex"}', "guide: regex: its value must be text"),
        ('{"kind": "regex", "value": "("}', "guide: regex: .*unclosed group"),
        ('{"kind": "regex", "value": "(?=x)"}', "guide: regex: .*look-around"),
        ('{"kind": "grammar", "value": "start: foo"}', "guide: grammar: .*unknown name"),
        ('{"kind": "grammar", "value": "root ::= foo"}', "guide: grammar: .*foo"),
        ('{"kind": "json_schema", "value": 5}', "guide: json_schema: its value"),
        ('{"kind": "json_schema", "value": "{"}', "guide: json_schema: "),
        ('{"kind": "json_schema", "value": {"type": "foo"}}', "guide: json_schema: .*foo"),
        ('{"kind": "json_schema", "value": {"$ref": "http://x/y"}}', "guide: json_schema: "),
    ],
)
def test_what_is_no_guide_is_refused_in_llguidances_words(said: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        GUIDES.make(said)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("regex", "(" * 5000 + "a" + ")" * 5000),
        ("regex", "((a{1,1000}){1,1000}){1,1000}"),
        ("grammar", "start: " + "(" * 5000 + '"a"' + ")" * 5000),
        ("json_schema", {"type": "string", "pattern": "^(.{1,500}x){1,500}$"}),
    ],
    ids=["deep", "wide", "deep grammar", "pattern"],
)
def test_a_guide_too_complex_ends_by_name_and_soon(kind: str, value: object) -> None:
    """Either it is refused, or its first step ends."""
    with contextlib.suppress(UserError):
        made = guide(kind, value)
        allowed = made.allowed()
        assert made.failed or allowed.any()
