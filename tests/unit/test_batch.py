"""A batch of prompts, from the client's side: every line is answered once, whatever happens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tools.answer import Answer
from tools.batch import Line, ask_all, labelled, read
from tools.interrupts import Interrupts
from zpd.blobs import Blob
from zpd.errors import Outcome, RemoteError, UserError
from zpd.messages import Accepted, Ask, Cancel, Delta, Done, Message
from zpd.requests import Sampling


class Server:
    """Answers each question with its label, but for those asked beyond ``room``; after so many
    looks it is lost, or its user presses Ctrl-C."""

    def __init__(
        self, room: int = 10**6, lose_after: int = 10**6, interrupts: Interrupts | None = None
    ) -> None:
        self.room = room
        self.lose_after = lose_after
        self.interrupts = interrupts
        self.out: list[Message] = []
        self.live: list[str] = []
        self.most = 0
        self.received = 0

    def send(self, message: Message, blobs: Sequence[Blob] = ()) -> None:
        if isinstance(message, Ask):
            self.live.append(message.label)
            self.most = max(self.most, len(self.live))
            self.out.append(Accepted(message.label, "u" + message.label, 3))
            if len(self.live) <= self.room:
                self.out.append(Delta("u" + message.label, message.label, (1, 2)))
                self.out.append(Done(message.label, "u" + message.label, "length", "", 3, 2))
        elif isinstance(message, Cancel):
            self.out.append(Done(message.uid[1:], message.uid, "cancelled", "by you", 3, 0))

    def receive(self, timeout: float) -> tuple[Message, tuple[Blob, ...]] | None:
        self.received += 1
        if self.received > self.lose_after:
            raise RemoteError("peer_lost", "it is gone")
        if self.interrupts is not None and self.received == 10:
            self.interrupts._note(2, None)
        if not self.out:
            return None
        message = self.out.pop(0)
        if isinstance(message, Done):
            self.live.remove(message.label)
        return message, ()


def question(line: Line) -> tuple[Ask, tuple[Blob, ...]]:
    return labelled(Ask("ask", "raw", 9, Sampling()), line), (Blob.text(line.prompt),)


LINES = [Line(f"n{i}", f"text {i}", i) for i in range(20)]


def play(server: Server, at_once: int = 4) -> dict[str, Answer]:
    found: dict[str, Answer] = {}
    interrupts = server.interrupts or Interrupts()
    for line, answer in ask_all(server, LINES, question, at_once, interrupts):
        assert line.name not in found
        found[line.name] = answer
    assert set(found) == {x.name for x in LINES}
    return found


@pytest.mark.parametrize("at_once", [1, 4, 100])
def test_each_line_gets_its_own_answer_and_no_more_are_asked_at_once(at_once: int) -> None:
    server = Server()
    for name, answer in play(server, at_once).items():
        assert answer.text == f"ask-{name}" and answer.outcome is Outcome.LENGTH
    assert server.most == min(at_once, len(LINES))


def test_an_interrupt_cancels_what_is_asked_and_asks_no_more() -> None:
    server = Server(room=0, interrupts=Interrupts())
    found = play(server)
    assert {a.outcome for a in found.values()} == {Outcome.CANCELLED}
    assert sum(a.detail == "by you" for a in found.values()) == 4
    assert server.most == 4


def test_a_lost_coordinator_ends_every_line_by_name() -> None:
    found = play(Server(lose_after=10))
    lost = [a for a in found.values() if a.outcome is Outcome.COORDINATOR_LOST]
    assert len(lost) >= 15 and all("it is gone" in a.detail for a in lost)
    assert sum(a.outcome is Outcome.LENGTH for a in found.values()) == len(LINES) - len(lost) > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no line"),
        ("\n \n", "has no line"),
        ('"a"\n{', "line 2: "),
        ("[1]", 'line 1: must be a text, or an object with "prompt"'),
        ('{"prompt": 3}', "line 1: prompt: must be a text"),
        ('{"prompts": "a"}', "line 1: prompts: unknown key, known are: prompt, max_tokens, id"),
        ('{"prompt": "a", "max_tokens": -1}', "line 1: max_tokens = -1: must be a whole number"),
        ('{"prompt": "a", "max_tokens": true}', "line 1: max_tokens = True: must be"),
        ('{"prompt": "a", "id": [1]}', "line 1: id: must be a text or a whole number"),
        ('{"prompt": "a", "id": 2}\n"b"', "line 2: id = '2': another line has it already"),
        ("[" * 100_000, "line 1: "),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "b.jsonl"
    file.write_text(text)
    with pytest.raises(UserError) as error:
        read(file, 5)
    assert str(error.value).startswith(f"--batch {file}: ") and said in str(error.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "b.jsonl"
    file.write_bytes(b'"\xff"')
    with pytest.raises(UserError, match="is not UTF-8 text"):
        read(file, 5)
