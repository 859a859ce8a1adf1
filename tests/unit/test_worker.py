"""The compute workers: order, errors, bounds, and a pulse that shows who is stuck."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from zpd.actor import Progress
from zpd.errors import ZpdBug
from zpd.worker import BOUND, Workers

PATIENCE = 30.0


class Office:
    """Workers, and the loop that takes their results."""

    def __init__(self) -> None:
        self.woken = threading.Semaphore(0)
        self.workers = Workers(self.woken.release)
        self.results: list[tuple[Any, BaseException | None]] = []
        self.gates: list[threading.Event] = []

    def submit(self, work: Any, worker: str = "compute") -> None:
        self.workers.submit(
            work, lambda result, error: self.results.append((result, error)), worker
        )

    def hold(self, worker: str = "compute") -> threading.Event:
        """Work that ends when the event is set; returns once it runs."""
        gate, begun = threading.Event(), threading.Event()
        self.gates.append(gate)

        def work(progress: Progress) -> None:
            begun.set()
            assert gate.wait(PATIENCE)

        self.submit(work, worker)
        assert begun.wait(PATIENCE)
        return gate

    def take(self, count: int) -> None:
        for _ in range(count):
            while (result := self.workers.take()) is None:
                assert self.woken.acquire(timeout=PATIENCE)
                self.workers.collect()
            done, value, error = result
            done(value, error)


@pytest.fixture
def office() -> Iterator[Office]:
    made = Office()
    yield made
    for gate in made.gates:
        gate.set()
    assert made.workers.close(PATIENCE)


def test_results_come_in_order_and_errors_are_results(office: Office) -> None:
    failure = ValueError("no")

    def fail(progress: Progress) -> None:
        raise failure

    office.submit(lambda progress: 1)
    office.submit(fail)
    office.submit(lambda progress: 3)
    office.take(3)
    assert office.results == [(1, None), (None, failure), (3, None)]
    assert office.workers.take() is None


def test_idle_workers_are_not_busy(office: Office) -> None:
    assert not office.workers.pulse().busy
    office.submit(lambda progress: 1)
    assert office.workers.pulse().busy, "until its result was taken"
    office.take(1)
    assert not office.workers.pulse().busy


def test_the_pulse_stands_still_while_work_does(office: Office) -> None:
    office.hold()
    office.workers.pulse()
    first = office.workers.pulse()
    assert first.busy
    assert office.workers.pulse() == first


def test_a_bump_moves_the_pulse(office: Office) -> None:
    bump, bumped, end = threading.Event(), threading.Event(), threading.Event()
    office.gates += [bump, end]

    def work(progress: Progress) -> None:
        assert bump.wait(PATIENCE)
        progress.bump()
        bumped.set()
        assert end.wait(PATIENCE)

    office.submit(work)
    office.workers.pulse()
    office.workers.pulse()
    before = office.workers.pulse()
    bump.set()
    assert bumped.wait(PATIENCE)
    assert office.workers.pulse().work == before.work + 1


def test_a_stuck_worker_cannot_hide_behind_another(office: Office) -> None:
    office.hold("stuck")
    office.workers.pulse()
    before = office.workers.pulse()
    for n in range(3):
        office.submit(lambda progress, n=n: n, "well")
        office.take(1)
        assert office.workers.pulse().work <= before.work + 1
    after = office.workers.pulse()
    assert office.workers.pulse() == after


def test_too_much_waiting_work_is_a_bug(office: Office) -> None:
    office.hold()
    for _ in range(BOUND):
        office.submit(lambda progress: None)
    with pytest.raises(ZpdBug, match="worker compute: 1024 pieces of work wait already"):
        office.submit(lambda progress: None)


def test_a_close_says_whether_work_still_runs(office: Office) -> None:
    gate = office.hold()
    ran: list[int] = []
    office.submit(lambda progress: ran.append(1))
    assert not office.workers.close(0.0)
    gate.set()
    assert office.workers.close(PATIENCE)
    assert ran == [], "what waited was not begun"


def test_results_that_nobody_took_yet_wake_the_loop_once() -> None:
    wakes: list[int] = []
    workers = Workers(lambda: wakes.append(1))

    def run(count: int) -> None:
        ended = threading.Event()
        for n in range(count):
            workers.submit(
                lambda progress, n=n: ended.set() if n == count - 1 else None, print, "w"
            )
        assert ended.wait(PATIENCE)

    run(5)
    run(1)
    assert wakes == [1]
    assert workers.collect()
    run(2)
    run(1)
    assert wakes == [1, 1]
    assert workers.close(PATIENCE)
    assert len([*iter(workers.take, None)]) == 9
