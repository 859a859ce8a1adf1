"""Room 3: credit, and FIFO replies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zpd.errors import ZpdBug
from zpd.window import OutOfOrder, Window


def test_depth_one_is_send_then_receive() -> None:
    """S1."""
    window = Window(1, 1000)
    window.send("a", 1)
    assert not window.has_credit(1)
    window.reply("a")
    assert window.has_credit(1)


def test_bytes_bound_the_window_too() -> None:
    """S12: and one op larger than the bound may still go alone."""
    window = Window(8, 100)
    assert window.has_credit(1000)
    window.send("a", 60)
    assert window.has_credit(40) and not window.has_credit(41)


def test_sending_without_credit_is_a_bug_and_changes_nothing() -> None:
    window = Window(1, 100)
    window.send("a", 1)
    with pytest.raises(ZpdBug, match="without credit"):
        window.send("b", 1)
    assert len(window) == 1 and window.nbytes == 1


@pytest.mark.parametrize("wrong", ["b", "a2", None])
def test_a_reply_must_be_the_oldest_ops(wrong: str | None) -> None:
    window = Window(8, 100)
    window.send("a", 1)
    window.send("b", 1)
    with pytest.raises(OutOfOrder, match="oldest outstanding is a"):
        window.reply(wrong)
    assert len(window) == 2


def test_a_reply_to_nothing() -> None:
    with pytest.raises(OutOfOrder, match="no op"):
        Window(8, 100).reply("a")


@given(st.integers(1, 8), st.integers(1, 64), st.lists(st.integers(0, 80), max_size=60))
def test_credit_is_conserved(depth: int, limit: int, sizes: list[int]) -> None:
    """S5, S11: never more than the window, and all credit comes back."""
    window, out = Window(depth, limit), []
    for i, nbytes in enumerate(sizes):
        while not window.has_credit(nbytes):
            window.reply(out.pop(0))
        window.send(i, nbytes)
        out.append(i)
        assert len(window) == len(out) <= depth
        assert window.nbytes <= limit or len(window) == 1
    for key in out:
        window.reply(key)
    assert (len(window), window.nbytes) == (0, 0)
    assert window.peak <= depth


def test_clear_gives_everything_back() -> None:
    window = Window(2, 100)
    window.send("a", 1)
    window.send("b", 1)
    assert window.clear() == 2
    assert window.has_credit(100) and len(window) == 0


def test_a_pack_counts_as_one_op() -> None:
    """S8, S5: its bytes in full; it is back with the last of its ops."""
    window = Window(2, 100)
    window.send("a", 30, more=True)
    window.send("b", 30)
    assert (len(window), window.nbytes, window.peak) == (1, 60, 1)
    assert window.has_credit(40) and not window.has_credit(41)
    window.send("c", 1)
    assert not window.has_credit(1)
    window.reply("a")
    assert len(window) == 2 and window.nbytes == 31
    window.reply("b")
    assert len(window) == 1 and window.has_credit(1)
    assert window.clear() == 1 and len(window) == 0
