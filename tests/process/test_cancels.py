"""A cancel at any time, by message, by Ctrl-C or by the client's death: the answer is `cancelled`,
then the system is idle and the next answers are right (R15 to R20, R25)."""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Iterator

import pytest

from tests.process.faults import FAST, SLACK, Faults, prompt, within
from tests.process.harness import Command, own_home, wait_until
from tests.process.users import Answer
from zpd.errors import Outcome

LIMIT = SLACK * FAST["suspect"]
TRIES = 10  # of catching a request in a moment that it may pass unseen
PHASES = {"queued": "reserve", "filling": "prefill", "decoding": "decode"}
MOMENTS = ("queued", "filling", "importing", "decoding")


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faults]:
    with own_home(tmp_path_factory.mktemp("cancels")) as directory:
        made = Faults(directory)
        yield made
        made.close()


Requests = dict[str, str]  # uid -> phase


def requests(faults: Faults) -> Requests:
    found = faults.status("coordinator", lambda s: True, "any status")["actor"]["requests"]
    return {r["uid"]: r["phase"] for r in found}


def caught(faults: Faults, moment: str, known: Requests) -> bool:
    """Wait until the request that is not ``known`` is in that moment; False: it passed unseen."""

    def there() -> str:
        phases = [p for uid, p in requests(faults).items() if uid not in known]
        if not phases:
            return ""
        if moment == "importing" and phases == ["import"]:
            found = faults.status("decode", lambda s: True, "any status")
            return "seen" if "importing" in found["actor"]["slots"] else ""
        if phases == [PHASES.get(moment)]:
            return "seen"
        return "passed" if phases == ["decode"] else ""

    return wait_until(there, f"the request is {moment}") == "seen"


def company(faults: Faults, moment: str, tokens: int = 25) -> list[Answer]:
    """Others, which a cancel must not touch: they decode, in every lane where the victim queues."""
    count = faults.topology.lanes if moment == "queued" else 1
    others = [faults.user.ask(prompt(1 + i, 10), tokens) for i in range(count)]
    wait_until(lambda: all(a.ids for a in others), "the others decode")
    return others


def over(faults: Faults, company: list[Answer]) -> None:
    wait_until(lambda: all(a.over for a in company), "the others' answers")
    for answer in company:
        answer.right()
    faults.settles()


@pytest.mark.parametrize("times", [pytest.param(1, marks=pytest.mark.full), 2])
@pytest.mark.parametrize("moment", ["at once", *MOMENTS])
def test_cancel_by_message(faults: Faults, moment: str, times: int) -> None:
    others = company(faults, moment)
    for n in range(TRIES):
        known = requests(faults)
        victim = faults.user.ask(prompt(10 + n, 100), 100)
        seen = moment == "at once" or caught(faults, moment, known)
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
    [m if m == "filling" else pytest.param(m, marks=pytest.mark.full) for m in MOMENTS],
)
def test_cancel_by_the_end_of_the_client(faults: Faults, moment: str, way: signal.Signals) -> None:
    # Long enough that a new process finds every lane taken.
    others = company(faults, moment, 150 if moment == "queued" else 25)
    before = outcomes(faults)
    words = ("ask", "--config", faults.config, "--raw", "--max-tokens", "100")
    for n in range(TRIES):
        known = requests(faults)
        with Command(*words, "x" * (100 + n)) as ask:
            seen = caught(faults, moment, known)
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


def test_a_client_that_stands_still_is_given_up_and_told_so(faults: Faults) -> None:
    others, known = company(faults, ""), requests(faults)
    words = ("--raw", "--json", "--max-tokens", "400", "hello")
    with Command("ask", "--config", faults.config, *words) as ask:
        assert caught(faults, "decoding", known)
        at = time.monotonic()
        ask.signal(signal.SIGSTOP)
        wait_until(lambda: not requests(faults).keys() - known, "its request is over")
        assert time.monotonic() - at < LIMIT
        ask.signal(signal.SIGCONT)
        answer, line = ask.rest().splitlines()
        assert ask.process.returncode == 4
        assert json.loads(answer)["error"]["outcome"] == Outcome.COORDINATOR_LOST
        assert line.startswith("zpd ask: coordinator_lost: ")
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
