"""``zpd chat``: what a terminal sees of a conversation, against a stub server."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator

import pytest

from tests.stub_openai import BREAK, FAIL, Stub
from tools.cli import main

Talk = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def stub() -> Iterator[Stub]:
    with Stub() as found:
        yield found


@pytest.fixture
def talk(stub: Stub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Talk:
    def run(said: str, *flags: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(said))
        stub.bodies.clear()
        code = main(["chat", "--url", stub.url + "/v1", "--max-tokens", "2", *flags])
        return code, *capsys.readouterr()

    return run


def test_the_answer_streams_and_history_goes_along(stub: Stub, talk: Talk) -> None:
    code, out, err = talk("one\ntwo\n/new\nthree\n", "--system", "be brief")
    assert code == 0 and out == "tok tok \n" * 3
    assert "stub at" in err and "length after 2 tokens" in err
    system = {"role": "system", "content": "be brief"}
    user = [{"role": "user", "content": x} for x in ("one", "two", "three")]
    answer = {"role": "assistant", "content": "tok tok "}
    assert [b["messages"] for b in stub.bodies] == [
        [system, user[0]],
        [system, user[0], answer, user[1]],
        [system, user[2]],
    ]


def test_an_error_is_said_and_forgotten(stub: Stub, talk: Talk) -> None:
    code, _, err = talk(f"{FAIL}\n{BREAK}\nfine\n/quit\nnever asked\n")
    assert code == 0 and "HTTP 429: too many" in err and "stage_lost: gone" in err
    assert [b["messages"][-1]["content"] for b in stub.bodies] == [FAIL, BREAK, "fine"]
    assert len(stub.bodies[-1]["messages"]) == 1


def test_no_server_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "--url", "http://127.0.0.1:1"]) == 4
    assert "http://127.0.0.1:1" in capsys.readouterr().err
