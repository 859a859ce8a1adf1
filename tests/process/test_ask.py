"""``zpd ask`` against real processes with the toy model."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from nodes.engine.toy import toy_answer
from tests.process.conftest import Toy
from tests.process.harness import Command, send, wait_until, write_config, zpd
from tools.batch import Line, ask_all
from tools.interrupts import Interrupts
from tools.watch import Watch
from zpd.blobs import Blob
from zpd.client import Client
from zpd.config import load
from zpd.messages import Ask
from zpd.requests import Sampling

SPANS = ("queue", "reserve", "prefill", "transfer", "import", "first token", "decode")


def ask(toy: Toy, *arguments: str, stdin: str = "") -> dict[str, Any]:
    done = zpd("ask", "--config", toy.config, "--raw", "--json", *arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_answer_streams_and_the_last_line_says_where_the_time_went(toy: Toy) -> None:
    done = zpd("ask", "--config", toy.config, "--raw", "--max-tokens", "8", "hello")
    assert done.returncode == 0, done.stderr
    assert done.stdout
    line = done.stderr.splitlines()[-1]
    assert [name for name in SPANS if f"{name} " in line] == list(SPANS)
    assert "5 + 8 tokens" in line
    assert re.search(
        r", (\d+\.\d tokens/s|all at once)$", line
    )  # the toy's tokens may outrun its text


def test_json_is_one_object_alone(toy: Toy) -> None:
    answer = ask(toy, "--max-tokens", "8", "hello")
    assert answer.keys() == {"text", "token_ids", "finish_reason", "usage", "spans", "first_spans"}
    later = {"decode", "last_text"}
    assert answer["first_spans"].keys() == answer["spans"].keys() - later
    assert answer["finish_reason"] == "length"
    assert len(answer["token_ids"]) == 8
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13}
    assert all(seconds >= 0 for seconds in answer["spans"].values())


def test_the_answer_is_a_function_of_the_question(toy: Toy) -> None:
    first = ask(toy, "--max-tokens", "8", "a prompt of more than one chunk of 16 tokens")
    again = ask(toy, "--max-tokens", "8", "a prompt of more than one chunk of 16 tokens")
    other = ask(toy, "--max-tokens", "8", "b prompt of more than one chunk of 16 tokens")
    assert first["token_ids"] == again["token_ids"] != other["token_ids"]


def test_a_dash_reads_the_prompt_from_stdin(toy: Toy) -> None:
    said = ask(toy, "--max-tokens", "4", "--", "-x")
    read = ask(toy, "--max-tokens", "4", "-", stdin="-x")
    assert said["token_ids"] == read["token_ids"]


def test_seeds_draw_equally(toy: Toy) -> None:
    words = ("--max-tokens", "8", "--temperature", "5", "--top-k", "100", "hello")
    assert (
        ask(toy, "--seed", "3", *words)["token_ids"] == ask(toy, "--seed", "3", *words)["token_ids"]
    )


@pytest.mark.full  # quick: tests/unit/test_sampling.py
def test_two_hundred_seeds_vary_and_each_twice_is_equal(toy: Toy) -> None:
    lines = [Line(str(i), "hello", 6) for i in range(400)]

    def question(line: Line) -> tuple[Ask, tuple[Blob, ...]]:
        sampling = Sampling(temperature=1.0, seed=int(line.name) % 200)
        return Ask(line.name, "raw", 6, sampling), (Blob.text(line.prompt),)

    topology = load(toy.config)
    with Client(topology.coordinator.address, timeouts=topology.timeouts) as client:
        heard = ask_all(client, lines, question, 32, Interrupts())
        said = {int(line.name): tuple(answer.token_ids) for line, answer in heard}
    assert len({said[i] for i in range(200)}) == 200
    assert all(len(said[i]) == 6 and said[i] == said[200 + i] for i in range(200))


def test_json_has_the_log_probabilities_of_every_token(toy: Toy) -> None:
    words = ("--max-tokens", "8", "hello")
    answer = ask(toy, "--logprobs", "2", *words)
    assert [said["id"] for said in answer["logprobs"]] == answer["token_ids"]
    assert all(len(said["top"]) == 2 for said in answer["logprobs"])


def test_the_answer_has_the_form_asked_for(toy: Toy, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": [17, 4]}')
    bias = ("--logit-bias", f"{ord('1')}=-100")
    answer = ask(toy, "--json-schema", str(schema), *bias, "--priority", "3", "hello")
    assert answer["text"] == "4" and answer["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--temperature", "-1"], "temperature = -1.0: must be from 0.0"),
        (["--top-p", "0"], "top_p = 0.0: must be above 0"),
        (["--max-tokens", "-3"], "--max-tokens -3: must not be negative"),
        (["--timeout", "nan"], "--timeout nan: must be seconds"),
        (["--seed", "-1"], "seed = -1"),
        (["--regex", "("], "guide: regex: "),
        (["--grammar", "/nowhere.lark"], "--grammar /nowhere.lark: cannot be read"),
    ],
)
def test_a_value_that_is_not_allowed_is_named(toy: Toy, flags: list[str], named: str) -> None:
    done = zpd("ask", "--config", toy.config, "--json", *flags, "hello")
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout)["error"]["outcome"] == "bad_request"


def test_a_prompt_beyond_the_limit_is_refused(toy: Toy) -> None:
    done = zpd("ask", "--config", toy.config, "--raw", "--json", "x" * 600)
    assert done.returncode == 2
    found = json.loads(done.stdout)
    assert found["finish_reason"] == "error"
    assert found["error"]["outcome"] == "prompt_too_long"
    assert "prompt_too_long" in done.stderr


def test_a_coordinator_that_does_not_run_is_named(tmp_path: Any, home: Any) -> None:
    config = write_config(tmp_path)
    done = zpd("ask", "--config", config, "--json", "hello")
    assert done.returncode == 4
    address = load(config).coordinator.address
    (line,) = done.stderr.splitlines()
    assert address in line
    assert f"zpd up {config}" in line
    assert json.loads(done.stdout)["error"]["outcome"] == "unavailable"


def test_a_config_that_is_not_there_is_named() -> None:
    done = zpd("ask", "--config", "/nowhere.toml", "hello")
    assert done.returncode == 2
    assert "/nowhere.toml" in done.stderr


def test_ctrl_c_cancels_at_the_coordinator_and_the_next_answer_is_right(toy: Toy) -> None:
    words = ("--max-tokens", "8", "a prompt of more than one chunk of 16 tokens")
    right = ask(toy, *words)["token_ids"]
    topology = load(toy.config)

    def coordinator() -> dict[str, Any]:
        status = watch.views()[topology.coordinator.name].status
        actor: dict[str, Any] = status.get("actor", {})
        return actor

    with Watch(topology) as watch:
        # A stage that stands still keeps the request under way for as long as it takes.
        send(toy.running.pids["stage-1"], signal.SIGSTOP)
        try:
            with Command("ask", "--config", toy.config, "--raw", *words) as command:
                wait_until(lambda: coordinator().get("requests"), "the request is under way")
                command.signal(signal.SIGINT)
                command.rest()
                assert command.process.returncode == 130
        finally:
            send(toy.running.pids["stage-1"], signal.SIGCONT)
        wait_until(lambda: not coordinator().get("requests"), "the coordinator has no request")
        assert coordinator()["outcomes"].get("cancelled") == 1
        wait_until(lambda: watch.views()[topology.coordinator.name].ready, "the path is ready")
    assert ask(toy, *words)["token_ids"] == right


def test_a_batch_is_answered_line_by_line(toy: Toy, tmp_path: Path) -> None:
    """S2: streams of different lengths, at most five at once; each answer is its own."""
    texts = [f"prompt {i} " + "x" * (13 * i % 90) for i in range(12)]
    lines: list[Any] = [{"prompt": t, "id": f"n{i}"} for i, t in enumerate(texts)]
    lines[3], lines[7] = texts[3], {"prompt": texts[7], "max_tokens": 2}
    file = tmp_path / "batch.jsonl"
    file.write_text("\n\n".join(json.dumps(line) for line in lines))
    words = ("--config", toy.config, "--raw", "--max-tokens", "6", "--at-once", "5")
    done = zpd("ask", *words, "--batch", file)
    assert (done.returncode, done.stderr) == (0, "")
    answers = {a["id"]: a for a in map(json.loads, done.stdout.splitlines())}
    names = [f"n{i}" for i in range(12)]
    names[3], names[7] = "7", "15"  # the number of the line, where it has no id
    assert sorted(answers) == sorted(names)
    for i, (name, text) in enumerate(zip(names, texts, strict=True)):
        wanted = toy_answer(list(text.encode()), 2 if i == 7 else 6)
        assert answers[name]["token_ids"] == wanted, name


def test_a_batch_with_a_line_that_fails(toy: Toy, tmp_path: Path) -> None:
    file = tmp_path / "batch.jsonl"
    file.write_text(json.dumps("x" * 600) + "\n" + json.dumps("short"))
    done = zpd("ask", "--config", toy.config, "--raw", "--max-tokens", "3", "--batch", file)
    found = {a["id"]: a for a in map(json.loads, done.stdout.splitlines())}
    assert found["1"]["error"]["outcome"] == "prompt_too_long"
    assert found["2"]["token_ids"] == toy_answer(list(b"short"), 3)
    assert done.returncode == 2
    assert done.stderr.startswith("zpd ask: 1 of 2 failed, the first: prompt_too_long: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "PROMPT or --batch FILE.jsonl: exactly one of them"),
        (("hello", "--batch", "x"), "PROMPT or --batch FILE.jsonl: exactly one of them"),
        (("--batch", "no-such-file"), "--batch no-such-file: cannot be read"),
        (("--at-once", "0", "--batch", "x"), "--at-once 0: must be from 1 to 4096"),
    ],
)
def test_a_batch_asked_wrongly(toy: Toy, words: tuple[str, ...], said: str) -> None:
    done = zpd("ask", "--config", toy.config, *words)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
