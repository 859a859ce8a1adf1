"""A real model over real processes: whichever way its KV goes, what lands is, bit by bit, what one
process imports, and so is the answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodes.engine.solo import Solo, one_stage
from nodes.models.spec import read_spec
from tests.family_models import VOCAB, save
from tests.process.asking import GREEDY, ask_all, of_ids
from tests.process.faults import records
from tests.process.harness import started, write_config
from tests.reference import prompt_of
from zpd.config import load

LENGTHS = (1, 8, 35)  # less than a chunk, one, and several of which the last is not whole
N = 6
WAYS = [
    # both at once, each for its layers
    pytest.param(("tcp", "shm"), "float32", id="mixed"),
    *(
        pytest.param((kv, kv), dtype, id=f"{kv}-{dtype}", marks=pytest.mark.full)
        for kv in ("tcp", "shm")
        for dtype in ("float32", "bfloat16")
    ),
]


@pytest.mark.parametrize(("ways", "dtype"), WAYS)
def test_the_same_bits(tmp_path: Path, home: Path, ways: tuple[str, str], dtype: str) -> None:
    """S3: not only tokens, the KV that lands is identical too."""
    model = save("gemma3", tmp_path / "model")
    config = write_config(
        tmp_path,
        model={"name": str(model), "max_tokens": 64, "dtype": dtype},
        kv=ways,
        sections={"topology": {"log_level": "debug"}, "prefill": {"chunk": 8}},
    )
    topology, run_dir = load(config), tmp_path / "run"
    prompts = [prompt_of(n, VOCAB) for n in LENGTHS]
    with started(config, run_dir):
        heard = ask_all(topology, [of_ids(p, N) for p in prompts])
    log = records(run_dir, "decode")
    for stage, way in zip(topology.stages, ways, strict=True):
        sizes = [r["nbytes"] for r in log if (r["event"], r.get("writer")) == (LANDED, stage.name)]
        assert len(sizes) == 1 + 1 + 5
        assert {n > 0 for n in sizes} == {way == "tcp"}, "in messages, or straight to memory"
    landed = {r["n_prompt"]: r["digest"] for r in log if r["event"] == "kv_imported"}
    solo, ends = Solo(one_stage(topology)), read_spec(model).eos_ids
    assert landed == {len(p): solo.kv_digest(p) for p in prompts}
    for prompt, got in zip(prompts, heard, strict=True):
        want = solo.answer(prompt, N, GREEDY, ends)
        assert got.answer.token_ids == list(want.tokens)
        assert got.answer.outcome == want.finish


LANDED = "kv_landed"
