"""The toy model in real processes: what comes out is its hash chain over what went in (S4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodes.engine.toy import toy_answer
from tests.process.asking import GREEDY, ask_all, of_ids
from tests.process.harness import PATIENT, started, write_config
from zpd.requests import Sampling


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_answers_are_the_hash_chain(tmp_path: Path, home: Path, stages: int) -> None:
    """Around chunks of 16, and more requests at once than lanes and slots."""
    sections = {"decode": {"lanes": 2, "source_slots": 3}}
    config = write_config(tmp_path, stages=stages, timeouts=PATIENT, sections=sections)
    lengths = (1, 15, 16, 17, 40, 200)
    drawn = Sampling(temperature=1.5, top_k=20, seed=stages)
    asked = [
        ([(7 * n + 11 * i + (i >> 4)) % 256 for i in range(n)], 8, sampling)
        for n in lengths
        for sampling in (GREEDY, drawn)
    ]
    with started(config, tmp_path / "run") as running:
        heard = ask_all(running.topology, [of_ids(*a) for a in asked])
    for (prompt, n, sampling), got in zip(asked, heard, strict=True):
        assert got.answer.token_ids == toy_answer(prompt, n, sampling), (len(prompt), sampling)
