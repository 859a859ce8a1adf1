"""A client always gets one terminal answer, whatever the coordinator says or does not say."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest

from tools.answer import CANCEL_BUDGET, Answer, answer_to, where_time_went
from tools.interrupts import Interrupts
from zpd.asked import BACK, THERE
from zpd.blobs import Blob
from zpd.errors import Outcome, RemoteError
from zpd.messages import Accepted, Ask, Cancel, Delta, Done, Message
from zpd.requests import Sampling

Step = Message | RemoteError | Callable[[], None]
QUESTION = Ask("me", "raw", 2, Sampling())
DONE = Done("me", "u1", "length", "", 3, 2, {"queue": 0.5, "first_token": 0.25, "decode": 0.1})


class Script:
    """A coordinator that says what is written, then nothing. Time passes only while it waits."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = list(steps)
        self.sent: list[Message] = []
        self.time = 0.0
        self.send_takes = 0.0

    def now(self) -> float:
        return self.time

    def send(self, message: Message, blobs: Sequence[Blob] = ()) -> None:
        self.sent.append(message)
        self.time += self.send_takes

    def receive(self, timeout: float) -> tuple[Message, tuple[Blob, ...]] | None:
        step = self.steps.pop(0) if self.steps else None
        if isinstance(step, RemoteError):
            raise step
        if step is None or callable(step):
            self.time += timeout
            if callable(step):
                step()
            return None
        return step, ()


def ask(
    steps: Sequence[Step],
    interrupts: Interrupts | None = None,
    show: Callable[[str], None] | None = None,
    send_takes: float = 0.0,
) -> tuple[Answer, Script]:
    script = Script(steps)
    script.send_takes = send_takes
    by, to = interrupts or Interrupts(), show or (lambda text: None)
    answer = answer_to(script, QUESTION, (), by, 10.0, to, script.now)
    assert script.sent.pop(0) is QUESTION
    return answer, script


def interrupted() -> Interrupts:
    interrupts = Interrupts()
    interrupts.first = 2  # type: ignore[assignment]
    return interrupts


def test_text_streams_and_adds_up() -> None:
    shown: list[str] = []
    steps = [Accepted("me", "u1", 3), Delta("u1", "a", (7,)), Delta("u1", "b", (8,)), DONE]
    answer, script = ask(steps, show=shown.append)
    assert shown == ["a", "b"]
    assert (answer.text, answer.token_ids, answer.outcome) == ("ab", [7, 8], Outcome.LENGTH)
    assert script.sent == []


def test_a_send_that_takes_its_time_is_a_part_of_the_requests() -> None:
    """The question may be there long before the client's thread has its turn again."""
    answer, script = ask([Accepted("me", "u1", 3), DONE], send_takes=1.0)
    assert script.time == 1.0 and sum(answer.spans.values()) == pytest.approx(1.0)


def test_json_has_every_field() -> None:
    answer, _ = ask([Accepted("me", "u1", 3), Delta("u1", "ab", (7, 8)), DONE])
    found = json.loads(json.dumps(answer.as_json()))
    first = found["first_spans"]
    ways = [spans.pop(name) for spans in (found["spans"], first) for name in (THERE, BACK)]
    assert min(ways) >= 0
    assert found == {
        "text": "ab",
        "token_ids": [7, 8],
        "finish_reason": "length",
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        "spans": {"queue": 0.5, "first_token": 0.25, "decode": 0.1},
        "first_spans": {"queue": 0.5, "first_token": 0.25},
    }


def test_json_of_a_failed_request_names_outcome_and_detail() -> None:
    answer, _ = ask([Done("me", "u1", "stage_lost", "stage-1 died", 3, 0, {})])
    found = answer.as_json()
    assert found["finish_reason"] == "error"
    assert found["error"] == {"outcome": "stage_lost", "detail": "stage-1 died"}


def test_silence_ends_within_the_budget() -> None:
    answer, script = ask([Accepted("me", "u1", 3)])
    assert answer.outcome is Outcome.COORDINATOR_LOST
    assert script.time == pytest.approx(10.0)


def test_a_broken_link_keeps_what_came_before() -> None:
    answer, _ = ask([Delta("u1", "a", (7,)), RemoteError("lost", "the coordinator is gone")])
    assert (answer.outcome, answer.text) == (Outcome.COORDINATOR_LOST, "a")
    assert "the coordinator is gone" in answer.detail


def test_an_interrupt_cancels_once_and_waits_for_the_outcome() -> None:
    steps = [
        Accepted("me", "u1", 3),
        Delta("u1", "a", (7,)),
        Done("me", "u1", "cancelled", "", 3, 1, {}),
    ]
    answer, script = ask(steps, interrupted())
    assert script.sent == [Cancel("u1")]
    assert answer.outcome is Outcome.CANCELLED


def test_an_interrupt_before_the_uid_is_known_cancels_as_soon_as_it_is() -> None:
    interrupts = Interrupts()

    def interrupt() -> None:
        interrupts.first = 2  # type: ignore[assignment]

    _, script = ask([interrupt, Accepted("me", "u1", 3)], interrupts)
    assert script.sent == [Cancel("u1")]
    assert script.time <= 1.0 + CANCEL_BUDGET


def test_a_reader_who_went_away_cancels() -> None:
    def show(text: str) -> None:
        raise BrokenPipeError

    steps = [
        Accepted("me", "u1", 3),
        Delta("u1", "a", (7,)),
        Delta("u1", "b", (8,)),
        Done("me", "u1", "cancelled", "", 3, 2, {}),
    ]
    _, script = ask(steps, show=show)
    assert script.sent == [Cancel("u1")]


def test_an_unknown_outcome_is_refused() -> None:
    with pytest.raises(RemoteError, match="outcome"):
        ask([Done("me", "u1", "fine", "", 3, 2, {})])


def test_the_line_where_time_went() -> None:
    answer, _ = ask([DONE])
    assert where_time_went(answer) == (
        "to coordinator 0.000 s, queue 0.500 s, first token 0.250 s, decode 0.100 s, "
        "from coordinator 0.000 s; 3 + 2 tokens, 10.0 tokens/s"
    )


@pytest.mark.parametrize(("count", "said"), [(2, "all at once"), (1, "one token at most")])
def test_the_line_of_tokens_that_came_before_the_first_text(count: int, said: str) -> None:
    spans = {"first_text": 0.3, "decode": 0.0}
    answer, _ = ask([Done("me", "u1", "length", "", 3, count, spans)])
    assert where_time_went(answer).endswith(f"; 3 + {count} tokens, {said}")
