"""S4: the toy model's answer is a hash chain over the KV it imported; any fault changes it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from nodes.engine.solo import NoProgress, Solo, one_stage
from nodes.engine.toy import ToyDecode, ToyPrefill, toy_answer
from nodes.sampling import Sampler
from tests.plans import plan
from zpd.blobs import Blob
from zpd.errors import RemoteError, UserError, ZpdBug
from zpd.requests import Sampling

PROMPT = list(b"The quick brown fox jumps over the lazy dog")  # 43 tokens: 5 chunks of 8, and 3
GREEDY = Sampling()
QUIET = NoProgress()

Chunk = tuple[int, int, Blob, Blob]  # first layer, start, k, v


class Run:
    """Two stages and a decode node, with a place to put faults between them."""

    def __init__(self, lanes: int = 1, max_tokens: int = 128) -> None:
        self.topology = plan(
            "toy", (0, 3), (3, 8), lanes=lanes, source_slots=2, max_tokens=max_tokens
        )
        self.stages = [ToyPrefill(self.topology, node) for node in self.topology.stages]
        self.decode = ToyDecode(self.topology, self.topology.decode)
        for engine in (*self.stages, self.decode):
            engine.load(QUIET)

    def prefill(
        self, prompt: list[int], row: int = 0, ops: list[tuple[int, int]] | None = None
    ) -> tuple[list[Chunk], Blob]:
        """All KV chunks, writer by writer, and the last hidden state; ``ops`` [start, stop)."""
        n = len(prompt)
        by_stage: list[list[Chunk]] = [[], []]
        for start, stop in ops or [(s, min(s + 8, n)) for s in range(0, n, 8)]:
            x = Blob.of(np.array(prompt[start:stop], np.int32))
            for i, stage in enumerate(self.stages):
                done = stage.forward(row, start, x, QUIET)
                by_stage[i].append((3 * i, start, done.k, done.v))
                x = done.activations
        return by_stage[0] + by_stage[1], done.hidden

    def land(self, chunks: list[Chunk], slot: int = 0) -> None:
        for first_layer, start, k, v in chunks:
            self.decode.land(slot, first_layer, start, k, v)

    def answer(self, prompt: list[int], hidden: Blob, n: int = 4) -> list[int]:
        tokens = [self.first(0, 0, prompt, hidden)]
        while len(tokens) < n:
            tokens += self.decode.step([0], QUIET)
        return tokens

    def first(self, slot: int, lane: int, prompt: list[int], hidden: Blob) -> int:
        self.decode.import_slot(slot, lane, prompt, Sampler(GREEDY, prompt), QUIET)
        return self.decode.first(lane, hidden, QUIET)


@pytest.mark.parametrize("splits", [((0, 8),), ((0, 3), (3, 8)), ((0, 1), (1, 7), (7, 8))])
@pytest.mark.parametrize("chunk", [1, 8, 42, 43, 44])
def test_any_split_and_chunk_gives_the_expected_answer(
    splits: tuple[tuple[int, int], ...], chunk: int
) -> None:
    got = Solo(plan("toy", *splits, chunk=chunk)).answer(PROMPT, 12)
    assert list(got.tokens) == toy_answer(PROMPT, 12)
    assert got.finish == "length"


def test_a_sampled_answer_is_the_expected_one_too() -> None:
    sampling = Sampling(temperature=1.5, top_k=20, top_p=0.95, repetition_penalty=1.2, seed=11)
    got = Solo(plan("toy", (0, 3), (3, 8))).answer(PROMPT, 12, sampling)
    assert list(got.tokens) == toy_answer(PROMPT, 12, sampling)
    assert list(got.tokens) != toy_answer(PROMPT, 12)


def test_another_number_of_layers() -> None:
    got = Solo(plan("toy", (0, 2), (2, 5))).answer(PROMPT, 6)
    assert list(got.tokens) == toy_answer(PROMPT, 6, layers=5) != toy_answer(PROMPT, 6)


def test_an_answer_stops_at_its_stop_id_and_keeps_it() -> None:
    tokens = toy_answer(PROMPT, 8)
    at = next(i for i in range(1, 8) if tokens[i] not in tokens[:i])
    got = Solo(plan("toy", (0, 8))).answer(PROMPT, 8, eos_ids=[tokens[at]])
    assert (list(got.tokens), got.finish) == (tokens[: at + 1], "stop")


def test_every_prompt_token_and_its_place_matter() -> None:
    swapped = [PROMPT[1], PROMPT[0], *PROMPT[2:]]
    others = [swapped, PROMPT[:-1], PROMPT[1:]]
    others += [[*PROMPT[:i], PROMPT[i] ^ 1, *PROMPT[i + 1 :]] for i in range(len(PROMPT))]
    answers = {tuple(toy_answer(p, 4)) for p in [PROMPT, *others]}
    assert len(answers) == len(others) + 1


Fault = Callable[[list[Chunk]], list[Chunk]]


def flip(chunk: Chunk, at: int, part: int) -> Chunk:
    """One bit of one word of K (0) or V (1) is another one."""
    first_layer, start, *kv = chunk
    array = kv[part].numpy().copy()
    array.reshape(-1)[at] ^= np.uint64(1)
    kv[part] = Blob.of(array)
    return (first_layer, start, kv[0], kv[1])


def faults() -> dict[str, Fault]:
    """Chunks 0 to 5 are stage 0's, 6 to 11 stage 1's."""
    made: dict[str, Fault] = {}
    for i in range(12):
        made[f"lose {i}"] = lambda c, i=i: c[:i] + c[i + 1 :]
        made[f"late duplicate of {i}"] = lambda c, i=i: [*c, c[i]]
        made[f"flip first k of {i}"] = lambda c, i=i: [*c[:i], flip(c[i], 0, 0), *c[i + 1 :]]
        made[f"flip last v of {i}"] = lambda c, i=i: [*c[:i], flip(c[i], -1, 1), *c[i + 1 :]]
    for i in (1, 2, 7):
        made[f"swap the contents of {i} and {i + 1}"] = lambda c, i=i: [
            *c[:i], (c[i][0], c[i][1], *c[i + 1][2:]), (*c[i + 1][:2], *c[i][2:]), *c[i + 2 :]
        ]  # fmt: skip
    made["first chunk after the second"] = lambda c: [c[1], c[0], *c[2:]]
    made["k for v"] = lambda c: [(f, s, v, k) for f, s, k, v in c]
    made["one position off"] = lambda c: [*c[:5], (c[5][0], c[5][1] + 1, *c[5][2:]), *c[6:]]
    made["one layer off"] = lambda c: [(f + 1 if f == 0 else f, s, k, v) for f, s, k, v in c]
    made["nothing of one writer"] = lambda c: c[:6]
    made["nothing"] = lambda c: []
    return made


@pytest.mark.parametrize("name", list(faults()))
@pytest.mark.parametrize("before", ["nothing", "the same prompt", "another one, cancelled"])
def test_a_fault_on_the_way_to_the_slot_changes_the_answer(name: str, before: str) -> None:
    run = Run()
    if before == "another one, cancelled":
        run.land(run.prefill(PROMPT[::-1])[0])
    chunks, hidden = run.prefill(PROMPT)
    if before == "the same prompt":
        run.land(chunks)
        assert run.answer(PROMPT, hidden) == toy_answer(PROMPT, 4)
    run.land(faults()[name](chunks))
    assert run.answer(PROMPT, hidden) != toy_answer(PROMPT, 4)


def test_without_a_fault_the_answer_is_right_whatever_lay_there_before() -> None:
    run = Run()
    other, _ = run.prefill(PROMPT[::-1])
    chunks, hidden = run.prefill(PROMPT)
    run.land(other)
    run.land(other[:3])
    for order in (chunks, chunks[6:] + chunks[:6]):
        run.land(order)
        assert run.answer(PROMPT, hidden) == toy_answer(PROMPT, 4)


def test_kv_in_another_slot_changes_the_answer() -> None:
    run = Run()
    chunks, hidden = run.prefill(PROMPT)
    run.land(chunks[:5] + chunks[6:])
    run.land(chunks[5:6], slot=1)
    assert run.answer(PROMPT, hidden) != toy_answer(PROMPT, 4)


@pytest.mark.parametrize(
    "ops",
    [
        [(0, 8), (16, 24), (24, 32), (32, 40), (40, 43)],
        [(0, 8), (16, 24), (8, 16), (24, 32), (32, 40), (40, 43)],
        [(0, 8), (8, 16), (8, 16), (16, 24), (24, 32), (32, 40), (40, 43)],
        [(0, 8), (8, 16), (0, 8), (16, 24), (24, 32), (32, 40), (40, 43)],
        [(0, 8), (8, 16), (16, 24), (24, 32), (32, 40)],
    ],
    ids=["lost", "reordered", "twice", "first again", "last lost"],
)
def test_a_fault_on_the_ring_changes_the_answer(ops: list[tuple[int, int]]) -> None:
    run = Run()
    good, _ = run.prefill(PROMPT)  # the same prompt was there before
    bad, hidden = run.prefill(PROMPT, ops=ops)
    # All KV lands once: what the good run sent, replaced by the last of what the bad run sent.
    latest = {c[:2]: c for c in good} | {c[:2]: c for c in bad}
    run.land(list(latest.values()))
    assert run.answer(PROMPT, hidden) != toy_answer(PROMPT, 4)


def test_lanes_do_not_influence_each_other() -> None:
    prompts = [PROMPT, PROMPT[:9], PROMPT[::-1]]
    run = Run(lanes=3)
    answers: list[list[int]] = []
    for lane, prompt in enumerate(prompts):
        chunks, hidden = run.prefill(prompt, row=1)
        run.land(chunks, slot=1)
        answers.append([run.first(1, lane, prompt, hidden)])
    for lanes in ([0], [2, 0], [1], [0, 1, 2], [2, 1], [1, 2]):
        for lane, token in zip(lanes, run.decode.step(lanes, QUIET), strict=True):
            answers[lane].append(token)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer == toy_answer(prompt, len(answer))


def test_a_lane_that_is_full_is_a_bug() -> None:
    run = Run(max_tokens=44)
    chunks, hidden = run.prefill(PROMPT)
    run.land(chunks)
    assert run.answer(PROMPT, hidden, 2) == toy_answer(PROMPT, 2)
    with pytest.raises(ZpdBug, match="lane 0 is full: 44 tokens"):
        run.decode.step([0], QUIET)


@pytest.mark.parametrize(
    ("slot", "first_layer", "start", "shape", "dtype"),
    [
        (2, 0, 0, (3, 1, 8, 2), np.uint64),
        (0, 6, 0, (3, 1, 8, 2), np.uint64),
        (0, 0, 121, (3, 1, 8, 2), np.uint64),
        (0, 0, 0, (3, 1, 0, 2), np.uint64),
        (0, 0, 0, (0, 1, 8, 2), np.uint64),
        (0, 0, 0, (3, 2, 8, 2), np.uint64),
        (0, 0, 0, (3, 1, 8, 4), np.uint64),
        (0, 0, 0, (3, 8, 2), np.uint64),
        (0, 0, 0, (3, 1, 8, 2), np.int64),
    ],
)
def test_kv_that_is_not_the_slots_is_refused_and_changes_nothing(
    slot: int, first_layer: int, start: int, shape: tuple[int, ...], dtype: type
) -> None:
    run = Run()
    chunks, hidden = run.prefill(PROMPT)
    run.land(chunks)
    good, bad = chunks[0][2], Blob.of(np.ones(shape, dtype))
    for k, v in ((bad, bad), (good, bad), (bad, good)):
        with pytest.raises(RemoteError, match="kv"):
            run.decode.land(slot, first_layer, start, k, v)
    assert run.answer(PROMPT, hidden) == toy_answer(PROMPT, 4)


@pytest.mark.parametrize(
    ("stage", "start", "x"),
    [
        (0, 0, np.array([256], np.int32)),
        (0, 0, np.array([-1], np.int32)),
        (0, 0, np.array([1], np.int64)),
        (0, 0, np.array([[1]], np.int32)),
        (0, 0, np.array([], np.int32)),
        (0, 0, np.array(7, np.int32)),
        (0, 127, np.array([1, 2], np.int32)),
        (1, 0, np.array([1], np.int32)),
        (1, 0, np.array([1], np.uint64)),
        (1, 0, np.array([[1, 1]], np.uint64)),
    ],
)
def test_an_op_that_the_stage_cannot_take_is_refused(stage: int, start: int, x: np.ndarray) -> None:
    with pytest.raises(RemoteError, match="op"):
        Run().stages[stage].forward(0, start, Blob.of(x), QUIET)


def test_one_stage_stands_for_all_only_where_their_plans_agree() -> None:
    three = plan("toy", (0, 1), (1, 4), (4, 8))
    assert [s.layers for s in one_stage(three).stages] == [(0, 8)]
    nodes = tuple(replace(n, dtype="bfloat16") if n.name == "p1" else n for n in three.nodes)
    with pytest.raises(UserError, match="dtype of the stages"):
        one_stage(replace(three, nodes=nodes))


def test_a_slow_toy_takes_its_time_with_signs_of_life_and_answers_the_same() -> None:
    class Counting:
        bumps = 0

        def bump(self) -> None:
            self.bumps += 1

    run, seconds = Run(), 0.1
    slow = replace(run.topology, model=replace(run.topology.model, toy_seconds=seconds))
    stages = [ToyPrefill(slow, node) for node in slow.stages]
    decode, x = ToyDecode(slow, slow.decode), Blob.of(np.array(PROMPT, np.int32))
    for engine in (*stages, decode):
        engine.load(QUIET)
    began, count = time.monotonic(), Counting()
    for i, stage in enumerate(stages):
        done = stage.forward(0, 0, x, count)
        decode.land(0, 3 * i, 0, done.k, done.v)
        x = done.activations
    decode.import_slot(0, 0, PROMPT, Sampler(GREEDY, PROMPT), count)
    tokens = [decode.first(0, done.hidden, count), *decode.step([0], count)]
    assert time.monotonic() - began >= 4 * seconds
    assert count.bumps > 8 + 8 + 8 + 4  # of the layers, and some while it waited
    assert tokens == toy_answer(PROMPT, 2)
