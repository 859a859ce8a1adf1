"""S3 with real processes: whatever the depth of the window and the number of stages, B = 4 streams
have the tokens, and the KV that lands the bits, of one process that has nothing else to do."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nodes.engine.solo import Answer, Solo, one_stage
from nodes.engine.toy import toy_answer
from tests.process.asking import ask_all, of_ids
from tests.process.harness import PATIENT, own_home, wait_until, write_config
from tools.depths.trips import Seen
from tools.interrupts import Interrupts
from tools.warm.engine import Warm, running

DEPTHS = ("1", "2", "3", "8", "16", "auto")
LENGTHS = (150, 61, 7, 5)  # the last two are packed; 32 is a chunk
TOKENS, CHUNK, LAYERS = 4, 32, 8
OPS = 5 + 2 + 1 + 1
TIMES = {**PATIENT, "handshake": 20.0, "chunk": 200.0, "step": 200.0, "request": 600.0}


@dataclass(frozen=True)
class Ring:
    warm: Warm
    log: Path  # the decode node's
    want: list[Answer]
    digests: list[tuple[int, str]]  # (n_prompt, SHA-256 of its KV)

    def landed(self, since: float) -> list[tuple[int, str]]:
        lines = self.log.read_text().splitlines(keepends=True)
        records: list[dict[str, Any]] = [json.loads(x) for x in lines if x.endswith("\n")]
        new = [r for r in records if r["event"] == "kv_imported" and r["mono"] >= since]
        return sorted((r["n_prompt"], r["digest"]) for r in new)


def prompts(vocab: int) -> list[list[int]]:
    draw = random.Random(3)
    return [[draw.randrange(vocab) for _ in range(n)] for n in LENGTHS]


@contextmanager
def ring(directory: Path, model: dict[str, Any], stages: int, vocab: int) -> Iterator[Ring]:
    four = {"lanes": 4, "source_slots": 4}
    sections = {"topology": {"log_level": "debug"}, "prefill": {"chunk": CHUNK}, "decode": four}
    file = write_config(directory, stages=stages, model=model, timeouts=TIMES, sections=sections)
    at = directory / "run"
    with running(file.read_text(), "tools.depths.nodes", at, Interrupts()) as warm:
        solo = Solo(one_stage(warm.topology))
        want = [solo.answer(p, TOKENS) for p in prompts(vocab)]
        digests = sorted((len(p), solo.kv_digest(p)) for p in prompts(vocab))
        yield Ring(warm, at / "decode.jsonl", want, digests)


def check(ring: Ring, depth: str, vocab: int) -> None:
    since = time.monotonic()  # the same clock in every process of a machine
    ring.warm.set("coordinator", {"depth": depth, "order": "fifo"})
    heard = ask_all(ring.warm.topology, [of_ids(p, TOKENS) for p in prompts(vocab)], 4)
    assert [h.answer.token_ids for h in heard] == [list(w.tokens) for w in ring.want]
    wait_until(lambda: len(ring.landed(since)) == 4, "the imports are in the log")
    assert ring.landed(since) == ring.digests
    seen = Seen(json.loads(ring.warm.told("coordinator")))
    assert len(seen.trips) == OPS and not seen.out
    if depth == "1":
        assert seen.deepest == 1
    elif depth != "auto":
        assert 1 < seen.deepest <= int(depth), "S5: more than one, and never more than the window"


STAGES = [2, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 3, 4))]


@pytest.fixture(scope="module", params=STAGES)
def toy_ring(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ring]:
    with own_home(tmp_path_factory.mktemp("toy")) as directory:
        model = {"name": "toy", "max_tokens": 256, "layers": LAYERS}
        with ring(directory, model, request.param, 256) as made:
            yield made


@pytest.mark.parametrize("depth", DEPTHS)
def test_toy(toy_ring: Ring, depth: str) -> None:
    """S3, S4, S5."""
    said = [list(w.tokens) for w in toy_ring.want]
    assert said == [toy_answer(p, TOKENS, layers=LAYERS) for p in prompts(256)]
    check(toy_ring, depth, 256)


@pytest.fixture(scope="module", params=range(1, 5))
def real_ring(
    request: pytest.FixtureRequest, smollm: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ring]:
    model = {"name": str(smollm), "max_tokens": 256}
    directory = tmp_path_factory.mktemp("real")
    with own_home(directory), ring(directory, model, request.param, 49152) as made:
        yield made


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("depth", DEPTHS)
def test_smollm(real_ring: Ring, depth: str) -> None:
    """S3, S5."""
    check(real_ring, depth, 49152)
