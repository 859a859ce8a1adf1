"""The first interrupt asks, the second one insists."""

from __future__ import annotations

import signal

import pytest

from tools.interrupts import Interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_asks_the_second_insists(number: signal.Signals) -> None:
    with Interrupts() as interrupts:
        assert not interrupts.asked
        signal.raise_signal(number)
        assert interrupts.asked
        assert interrupts.exit_code == 128 + number
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_the_handlers_of_before_come_back() -> None:
    before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
    with Interrupts() as interrupts:
        assert signal.getsignal(signal.SIGTERM) == interrupts._note
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
    assert interrupts.exit_code == 0
