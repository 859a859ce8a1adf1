"""The interleavings of the requirements that involve a process, with real ones, over both
transports of KV, prefetch on: SIGKILL and a new process, or SIGSTOP until it was declared lost and
then SIGCONT. ``tests/sim/test_interleavings.py`` scripts every one, message by message."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.ahead import N_B, TIMES, TRIES, Ahead, Shared
from tests.process.faults import SLACK, prompt, within
from tests.process.harness import own_home, wait_until
from tests.process.users import Answer
from zpd.errors import Outcome

LIMIT = SLACK * TIMES["suspect"]
KILL, STOP = signal.SIGKILL, signal.SIGSTOP
STAGES = HEAD, TAIL = "stage-0", "stage-1"
FULL = pytest.mark.full
either_way = pytest.mark.parametrize("how", [KILL, STOP], ids=["kill", "stop"])


@pytest.fixture(scope="module", params=["tcp", "shm"])
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shared]:
    with own_home(tmp_path_factory.mktemp(request.param)) as directory:
        shared = Shared(directory, request.param)
        yield shared
        shared.close()


@pytest.fixture
def faults(shared: Shared) -> Ahead:
    return shared.get()


def others(faults: Ahead, *names: str) -> dict[str, int]:
    return {n: p for n, p in faults.running.pids.items() if n not in names}


def refused_by_name(faults: Ahead, name: str) -> None:
    late = faults.user.ask(prompt(5, 20), 4)
    within([late], time.monotonic(), LIMIT)
    assert late.outcome == Outcome.UNAVAILABLE
    assert name in late.detail


def at(name: str, moment: str, how: signal.Signals, *, quick: bool = False) -> object:
    label = f"{name}-{moment}-{'kill' if how is KILL else 'stop'}"
    return pytest.param(name, moment, how, id=label, marks=() if quick else FULL)


@pytest.mark.parametrize(
    ("name", "moment", "how"),
    [
        at(name, moment, how, quick=(name, moment, how) == (TAIL, "filling", KILL))
        for name in STAGES
        for moment in ("filling", "ready", "draining")
        for how in (KILL, STOP)
    ],
)
def test_a_stage_is_lost(faults: Ahead, name: str, moment: str, how: signal.Signals) -> None:
    """R15 to R25, while b's slot is filling, ready, or draining, and b's prompt is asked again."""
    before, pids = faults.term(), others(faults, name)
    a, b = faults.begun(moment, name)
    again = faults.user.ask(b.prompt, N_B)
    wait_until(lambda: again.uid or again.over, "it is asked again")
    since = time.monotonic()
    faults.lose(name, how)
    within([again], since, LIMIT)
    assert again.outcome in (Outcome.STAGE_LOST, Outcome.UNAVAILABLE)
    assert name in again.detail
    if moment == "filling":
        within([b], since, LIMIT)
        assert b.outcome == Outcome.STAGE_LOST
        assert name in b.detail
    faults.bring_back(name, how)
    wait_until(lambda: a.over and b.over, "a and b ended")
    a.right()
    if moment == "ready":
        b.right()
    faults.settles(but_term=before)
    assert others(faults, name) == pids
    assert faults.running.poll() == ()


@pytest.mark.parametrize(
    ("name", "how"),
    [
        pytest.param(name, how, id=f"{name}-{label}", marks=marks)
        for name, how, label, marks in (
            (TAIL, STOP, "stop", ()),
            (HEAD, STOP, "stop", FULL),
            (TAIL, KILL, "kill", FULL),
            (HEAD, KILL, "kill", FULL),
        )
    ],
)
def test_a_stuck_drain_is_fenced(faults: Ahead, name: str, how: signal.Signals) -> None:
    """R17, R18, R24: new requests are refused by name, the budget ends, the owner fences; a stage
    that may still write straight into its memory keeps the old one. Once it is back, b's prompt is
    answered right and the old memory is forgotten."""
    before, pids = faults.term(), others(faults, name)
    a, b = faults.begun("draining", name)
    use = faults.use(b)
    faults.lose(name, how)
    found = faults.status("decode", lambda s: True, "any status")["actor"]
    assert found["slots"] in ({"orphaned": 1}, {"free": 1}), found
    assert found["slots"] == {"free": 1} or not found["idle"]
    refused_by_name(faults, name)
    found = faults.status("decode", lambda s: s["actor"]["slots"] == {"free": 1}, "it was fenced")
    assert found["actor"]["segments"]["retired"] == faults.shared
    wait_until(lambda: ("fenced", name) in faults.quieted(use), "the log says so")
    wait_until(lambda: a.over, "a's answer")
    a.right()
    found = faults.status("coordinator", lambda s: True, "any status")
    assert not found["ready"] and name in found["why"], "fenced, but the ring is not whole"
    faults.bring_back(name, how)
    faults.serves(before)
    again = faults.user.ask(b.prompt, N_B)
    wait_until(lambda: again.over, "b's prompt was asked again")
    again.right()
    assert faults.owner()["segments"]["retired"] == 0
    faults.settles()
    assert others(faults, name) == pids


@FULL
@either_way
@pytest.mark.parametrize("last", [TAIL, HEAD])
def test_one_writer_dies_last(faults: Ahead, last: str, how: signal.Signals) -> None:
    """R17, R18: one writer of b's slot is proven quiet, and the other is lost before it is."""
    before, first = faults.term(), HEAD if last == TAIL else TAIL
    proof = "closed" if last == TAIL else "replaced"
    for _ in range(TRIES):
        a, b = faults.begun("draining", last)
        use = faults.use(b)
        if last == HEAD:  # CLOSE never passed it: only its death proves that the tail is quiet
            faults.lose(first, KILL)
            faults.restart(first)
        seen = wait_until(lambda u=use: faults.quieted(u), f"{first} is quiet")
        if seen == [(proof, first)]:
            break
        faults.signal(last, signal.SIGCONT)  # the budget ended first, as it may on a busy machine
        wait_until(lambda over=(a, b): all(x.over for x in over), "both ended")
        faults.settles()
    assert seen == [(proof, first)]
    faults.lose(last, how)
    faults.bring_back(last, how)
    wait_until(lambda: a.over, "a's answer")
    a.right()
    wait_until(lambda: len(faults.quieted(use)) == 2, f"{last} is quiet")
    faults.settles(but_term=before)
    assert [user for _, user in faults.quieted(use)] == [first, last]


@FULL
@either_way
@pytest.mark.parametrize("asleep", [False, True], ids=["awake", "asleep"])
def test_the_decode_node_is_lost_while_a_stage_writes(
    faults: Ahead, how: signal.Signals, asleep: bool
) -> None:
    """All that it had ends by name. ``asleep``: the tail is stopped in the middle of its writes,
    and goes on with them only when the next life, or the thawed one, is back."""
    before, pids = faults.term(), others(faults, "decode")
    a, b = faults.begun("filling", TAIL)
    c = faults.user.ask(b.prompt, N_B)
    wait_until(lambda: c.uid, "c is admitted")
    if asleep:
        faults.signal(TAIL, STOP)
    since = time.monotonic()
    faults.lose("decode", how)
    within([a, b, c], since, LIMIT)
    ends = {Outcome.DECODE_LOST, Outcome.STAGE_LOST} if asleep else {Outcome.DECODE_LOST}
    assert a.outcome == Outcome.DECODE_LOST
    assert {b.outcome, c.outcome} <= ends
    refused_by_name(faults, "decode")
    faults.bring_back("decode", how)
    if asleep:
        faults.status("coordinator", lambda s: "decode" not in s["actor"]["down"], "it is back")
        faults.signal(TAIL, signal.SIGCONT)
    faults.settles(but_term=before)
    assert others(faults, "decode") == pids


@FULL
@pytest.mark.parametrize("name", [HEAD, TAIL, "decode"])
def test_a_node_is_restarted_at_once_under_load(faults: Ahead, name: str) -> None:
    """A HELLO may come after an op was sent to the new process, and frames of the old one's time
    before or behind it: each request ends once, by name, and no token is wrong."""
    before, pids = faults.term(), others(faults, name)
    pick, answers = random.Random(name), []

    def load() -> bool:
        """Four at once; True once one has run since the last fault."""
        if sum(not a.over for a in answers) < 4:
            n = len(answers)
            answers.append(faults.user.ask(prompt(n, pick.randrange(1, 90)), pick.randrange(1, 9)))
        return any(a.outcome == Outcome.LENGTH for a in answers[seen:])

    for _ in range(2):
        seen = len(answers)
        wait_until(load, "a request was served")
        faults.signal(name, KILL)
        faults.restart(name)
    seen = len(answers)
    wait_until(load, "a request was served")
    wait_until(lambda: all(a.over for a in answers), "every request ended")
    for answer in answers:
        answer.right_so_far()
    faults.settles(but_term=before)
    assert others(faults, name) == pids


@FULL
@pytest.mark.parametrize("seed", range(4))
def test_two_nodes_are_lost_under_load(faults: Ahead, seed: int) -> None:
    """At a random time, among cancels; in any order, each killed or stopped, and brought back
    before or after it was missed. Fences, retired memory and new lives come together here."""
    pick, pids = random.Random(seed), faults.running.pids
    names = pick.sample([HEAD, TAIL, "decode"], 2)
    how = {name: pick.choice([KILL, STOP]) for name in names}
    faults.settled = False
    ops, answers = faults.ops(HEAD), []
    for i in range(6):
        answers.append(faults.user.ask(prompt(i, pick.randrange(1, 200)), 6))
        if pick.random() < 0.5:
            faults.user.cancel(answers[-1], after=pick.uniform(0.0, 2.0))
    n = pick.randrange(20)
    wait_until(lambda: faults.ops(HEAD) >= ops + n or all(a.over for a in answers), f"{n} ops")
    for name in names:
        faults.signal(name, how[name])
        if pick.random() < 0.5:
            faults.status("coordinator", lambda s, n=name: n in s["actor"]["down"], "it is missed")
    if pick.random() < 0.5 and "decode" not in names:
        free = {"free": 1}
        faults.status("decode", lambda s: s["actor"]["slots"] == free, "all was fenced")
    for name in pick.sample(names, 2):
        faults.bring_back(name, how[name])
    wait_until(lambda: all(a.over for a in answers), "every request ended")
    for answer in answers:
        answer.right_so_far()
    faults.settles()
    killed = [name for name in names if how[name] is KILL]
    assert others(faults, *killed).items() <= pids.items()


@FULL
@pytest.mark.parametrize("same", [True, False], ids=["same", "other"])
def test_a_prompt_while_the_orphan_flies(faults: Ahead, same: bool) -> None:
    """R20, R25: nobody is lost, and the writes that were under way end in band."""
    a, b = faults.begun("filling", TAIL)
    faults.user.cancel(b)
    again = faults.user.ask(b.prompt if same else prompt(7, 300), N_B)
    wait_until(lambda: again.over and a.over, "both answers")
    assert b.outcome == Outcome.CANCELLED
    a.right()
    again.right()
    faults.settles()


@FULL
@pytest.mark.parametrize("kv", ["tcp", "shm"])
def test_a_living_stage_writes_after_the_fence(tmp_path: Path, home: Path, kv: str) -> None:
    """R16, R17, R25: b is cancelled while chunks compute that take longer than the drain's budget.
    b's prompt has the slot again when they are written: to memory that nobody reads."""
    faults = Ahead(tmp_path, kv, seconds=0.5, times={**TIMES, "drain": 0.2})
    try:
        ops = faults.ops(TAIL)
        b = faults.user.ask(prompt(20, 160), N_B)
        wait_until(lambda: faults.ops(TAIL) >= ops + 1, "the tail writes")
        faults.user.cancel(b)
        again = faults.user.ask(b.prompt[:40], 2)
        use = faults.use(b)
        retired = int(faults.shared)
        faults.status(
            "decode",
            lambda s: (
                s["actor"]["slots"] == {"filling": 1}
                and s["actor"]["segments"]["retired"] == retired
            ),
            "the next request has the slot, the old writes are not over",
        )
        wait_until(lambda: again.over, "the answer")
        assert b.outcome == Outcome.CANCELLED
        again.right()
        assert ("fenced", TAIL) in faults.quieted(use)
        faults.settles()
    finally:
        faults.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("n", [40, pytest.param(1150, marks=FULL)])
def test_a_storm_of_cancels(faults: Ahead, n: int) -> None:
    """R15 to R20, at random times of six requests at once; the same processes serve afterwards."""
    pick, pids = random.Random(n), faults.running.pids
    before = faults.term()
    answers: list[Answer] = []
    for i in range(n):
        wait_until(lambda: sum(not a.over for a in answers[-12:]) < 6, "a place")
        answer = faults.user.ask(prompt(i, pick.randrange(1, 90)), pick.randrange(1, 6))
        if i % 8:
            faults.user.cancel(answer, after=pick.uniform(0.0, 0.8))
        answers.append(answer)
    within(answers, time.monotonic(), LIMIT)
    assert {a.outcome for a in answers} == {Outcome.CANCELLED, Outcome.LENGTH}
    faults.settles()
    assert faults.term() == before, "no link broke"
    assert faults.running.pids == pids
    assert faults.running.poll() == ()
