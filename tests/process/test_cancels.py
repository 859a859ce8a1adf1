"""A cancel at any time, by message, by Ctrl-C or by the client's death: the answer is `cancelled`,
then the system is idle and the next answers are right (R15 to R20, R25)."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.process.faults import FAST, SLACK, Faults, prompt, within
from tests.process.harness import Command, wait_until
from tests.process.users import Answer
from zpd.errors import Outcome

LIMIT = SLACK * FAST["suspect"]
TRIES = 10  # of catching a request in a moment that it may pass unseen


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faults]:
    directory = tmp_path_factory.mktemp("cancels")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZPD_HOME", str(directory / "home"))
        made = Faults(directory)
        yield made
        made.close()


def importing(faults: Faults) -> bool:
    found = faults.status("decode", lambda s: True, "any status")
    return "importing" in found["actor"]["slots"]


def phase(faults: Faults) -> str:
    """Of the newest request."""
    found = faults.status("coordinator", lambda s: True, "any status")["actor"]["requests"]
    return found[-1]["phase"] if found else ""


SEEN: dict[str, Callable[[Faults], bool]] = {
    "queued": lambda f: phase(f) == "reserve",
    "filling": lambda f: phase(f) == "prefill",
    "importing": importing,
    "decoding": lambda f: phase(f) == "decode",
}


def caught(faults: Faults, moment: str) -> bool:
    """Wait until the newest request is in that moment; False: it passed unseen."""

    def there() -> str:
        if SEEN[moment](faults):
            return "seen"
        return "passed" if phase(faults) == "decode" else ""

    return wait_until(there, f"the request is {moment}") == "seen"


def company(faults: Faults, moment: str) -> list[Answer]:
    """Others, which a cancel must not touch: one decodes, and one fills where the victim queues."""
    decoding = faults.user.ask(prompt(1, 10), 40)
    wait_until(lambda: decoding.ids, "another request decodes")
    if moment != "queued":
        return [decoding]
    filling = faults.user.ask(prompt(2, 200), 5)
    wait_until(lambda: faults.phases(filling) == ["prefill"], "another request fills")
    return [decoding, filling]


def over(faults: Faults, company: list[Answer]) -> None:
    wait_until(lambda: all(a.over for a in company), "the others' answers")
    for answer in company:
        answer.right()
    faults.settles()


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("moment", ["at once", *SEEN])
def test_cancel_by_message(faults: Faults, moment: str, times: int) -> None:
    others = company(faults, moment)
    for n in range(TRIES):
        victim = faults.user.ask(prompt(10 + n, 100), 100)
        seen = moment == "at once" or caught(faults, moment)
        at = time.monotonic()
        for _ in range(times):
            faults.user.cancel(victim)
        again = faults.user.ask(prompt(10 + n, 100), 3)  # the same prompt, while the orphan flies
        within([victim], at, LIMIT)
        assert victim.outcome == Outcome.CANCELLED
        others.append(again)
        if seen:
            break
        wait_until(lambda a=again: a.over, "the next answer")
    assert seen
    over(faults, others)


@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGKILL], ids=["ctrl_c", "killed"])
@pytest.mark.parametrize(
    "moment",
    [m if m == "filling" else pytest.param(m, marks=pytest.mark.full) for m in SEEN],
)
def test_cancel_by_the_end_of_the_client(faults: Faults, moment: str, way: signal.Signals) -> None:
    others = company(faults, "queued" if moment == "queued" else "")
    before = outcomes(faults)
    words = ("ask", "--config", faults.config, "--raw", "--max-tokens", "100")
    for n in range(TRIES):
        known = faults.status("coordinator", lambda s: True, "any")["actor"]["clients"]
        with Command(*words, "x" * (100 + n)) as ask:
            faults.status(
                "coordinator", lambda s, k=known: s["actor"]["clients"] > k, "the question came"
            )
            seen = caught(faults, moment)
            at = time.monotonic()
            ask.signal(way)
            said = ask.rest()
            assert time.monotonic() - at < LIMIT
            assert ask.process.returncode == (130 if way is signal.SIGINT else -way)
            assert "Traceback" not in said
        cancelled = before.get("cancelled", 0) + n + 1
        faults.status(
            "coordinator",
            lambda s, c=cancelled: s["actor"]["outcomes"].get("cancelled", 0) == c,
            "the request was cancelled",
        )
        if seen:
            break
    assert seen
    over(faults, others)


def outcomes(faults: Faults) -> dict[str, int]:
    found: dict[str, int] = faults.status("coordinator", lambda s: True, "any")["actor"]["outcomes"]
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("n", [60, pytest.param(1000, marks=pytest.mark.full)])
def test_a_storm_of_cancels(faults: Faults, n: int) -> None:
    """At random times of four requests at once; the same processes serve afterwards."""
    pick, pids = random.Random(n), faults.running.pids
    answers: list[Answer] = []
    for i in range(n):
        wait_until(lambda: sum(not a.over for a in answers) < 4, "a place")
        answer = faults.user.ask(prompt(i, pick.randrange(1, 90)), pick.randrange(1, 9))
        faults.user.cancel(answer, after=pick.uniform(0.0, 0.8))
        answers.append(answer)
    within(answers, time.monotonic(), LIMIT)
    ends = {a.outcome for a in answers}
    assert ends == {Outcome.CANCELLED, Outcome.LENGTH}
    faults.settles()
    assert faults.running.pids == pids
    assert faults.running.poll() == ()
