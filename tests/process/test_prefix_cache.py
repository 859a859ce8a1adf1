"""Real processes: a conversation whose second turn begins like its first, caches on and off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nodes.engine.solo import Solo, one_stage
from tests.process.asking import ask, of_ids
from tests.process.faults import prompt, records
from tests.process.harness import started, wait_until, write_config
from tests.process.users import User, until_status
from tools.launch import Running
from zpd.errors import Outcome

ON = {"decode": {"prefix_cache": "exact"}, "prefill": {"prefix_cache_tokens": 4096}}


@contextmanager
def running(
    directory: Path, model: dict[str, Any], chunk: int, caches: dict[str, dict[str, Any]]
) -> Iterator[Running]:
    sections = {"topology": {"log_level": "debug"}, "prefill": {"chunk": chunk}}
    for section, values in caches.items():
        sections[section] = {**sections.get(section, {}), **values}
    times = {"suspect": 20.0, "handshake": 20.0, "chunk": 100.0, "step": 100.0, "request": 300.0}
    config = write_config(directory, model=model, timeouts=times, sections=sections)
    with started(config, directory / "run") as nodes:
        yield nodes


def landed(nodes: Running) -> list[int]:
    """Bytes of KV that came for each request, in order, by the log of nodes that have stopped."""
    found: dict[str, int] = {}
    for r in records(nodes.run_dir, "decode"):
        if r["event"] == "kv_landed":
            found[r["use"]] = found.get(r["use"], 0) + r["nbytes"]
    return list(found.values())


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("on", [False, True], ids=["off", "on"])
def test_the_second_turn_of_a_conversation_sends_its_end_only(tmp_path: Path, on: bool) -> None:
    """R27, R28: equal answers; what the first turn left is neither sent nor computed again."""
    model = {"name": "toy", "max_tokens": 512, "layers": 8}
    with running(tmp_path, model, 16, ON if on else {}) as nodes:
        user = User(nodes.topology)
        first = user.ask(prompt(1, 200), 8)
        wait_until(lambda: first.over, "the first turn")
        second = user.ask([*first.prompt, *first.ids, *prompt(2, 20)], 8)
        wait_until(lambda: second.over, "the second turn")
        for answer in (first, second):
            answer.right()
        user.close()
        status = until_status(nodes.topology, "decode", lambda s: True, "any status")
        assert status["actor"]["prefix_cache"]["mode"] == ("exact" if on else "off")
    one, two = landed(nodes)
    each = one // 200
    assert (one, two) == (200 * each, (228 - 192 if on else 228) * each)
    coordinator = records(nodes.run_dir, "coordinator")
    used = [(r["cached"], r["restored"]) for r in coordinator if r["event"] == "request_done"]
    assert used == [(0, 0), (192, 192) if on else (0, 0)]
    ops = [r for r in records(nodes.run_dir, "stage-1") if r["event"] == "op_computed"]
    assert len(ops) == 13 + (3 if on else 15)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_real_model_answers_with_the_bits_of_one_process(
    smollm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figures: list[str]
) -> None:
    """Tokens and the imported KV's digest of three turns, against a process without a cache."""
    monkeypatch.setenv("ZPD_HOME", str(tmp_path / "home"))
    model = {"name": str(smollm), "max_tokens": 256}
    text = tuple(range(1000, 1150))
    with running(tmp_path, model, 32, ON) as nodes:
        solo = Solo(one_stage(nodes.topology))
        turn, times, digests = text, list[float | None](), list[tuple[int, str]]()
        for _ in range(3):
            heard = ask(nodes.topology, of_ids(turn, 6))
            want = solo.answer(turn, 6)
            assert heard.answer.outcome is Outcome.LENGTH
            assert heard.answer.token_ids == list(want.tokens)
            digests.append((len(turn), solo.kv_digest(turn)))
            times.append(heard.ttft)
            turn = (*turn, *heard.answer.token_ids, *range(200, 210))
    sizes = landed(nodes)
    log = records(nodes.run_dir, "decode")
    assert [(r["n_prompt"], r["digest"]) for r in log if r["event"] == "kv_imported"] == digests
    done = [r for r in records(nodes.run_dir, "coordinator") if r["event"] == "request_done"]
    assert [(r["cached"], r["restored"]) for r in done] == [(0, 0), (128, 128), (160, 160)]
    assert sizes[1] * 150 == sizes[0] * (166 - 128)
    shown = " -> ".join(
        f"{t:.2f} s, {size / 2**20:.1f} MiB" for t, size in zip(times, sizes, strict=True)
    )
    figures.append(f"three turns of 150, 166 and 182 tokens, TTFT and KV sent: {shown}")
