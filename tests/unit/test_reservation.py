"""Room 6: the tables of the reservation machine, every row and every missing row."""

from __future__ import annotations

import itertools

import pytest

from zpd.reservation import (
    HOLDER_ROWS,
    IMPORT,
    NOT_FOR_IMPORT,
    USER_ROWS,
    Event,
    Holder,
    IllegalTransition,
    Reservation,
    User,
)

PROOFS = (Event.CLOSED, Event.REPLACED, Event.FENCED, Event.NEVER_SENT)
ABOUT_USERS = sorted(set(Event) - {Event.RESERVE, Event.RELEASE})


def at(holder: Holder, user: User, other: User = User.BUSY) -> Reservation:
    """A slot with writers a and b that stands where a test wants it. ``other`` (b) is busy by
    default, so that nothing settles."""
    slot = Reservation(3)
    slot.holder = holder
    if holder is not Holder.NONE:
        slot.users = {"a": user, "b": other, IMPORT: User.QUIET}
    return slot


def picture(slot: Reservation) -> tuple[object, ...]:
    return slot.epoch, slot.holder, dict(slot.users)


@pytest.mark.parametrize("holder", list(Holder))
@pytest.mark.parametrize("event", [Event.RESERVE, Event.RELEASE])
def test_every_holder_row_and_every_missing_one(holder: Holder, event: Event) -> None:
    slot = at(holder, User.BUSY)
    before = picture(slot)
    if (holder, event) in HOLDER_ROWS:
        slot.process(event)
        assert slot.holder is HOLDER_ROWS[holder, event]
    else:
        with pytest.raises(IllegalTransition, match=f"slot 3 epoch 1: {event} of holder"):
            slot.process(event)
        assert picture(slot) == before


@pytest.mark.parametrize("holder", [Holder.HELD, Holder.RELEASED])
@pytest.mark.parametrize("user", list(User))
@pytest.mark.parametrize("event", ABOUT_USERS)
def test_every_user_row_and_every_missing_one(holder: Holder, user: User, event: Event) -> None:
    slot = at(holder, user)
    before = picture(slot)
    if (holder, event) in HOLDER_ROWS and (user, event) in USER_ROWS:
        slot.process(event, "a")
        assert slot.users["a"] is USER_ROWS[user, event]
        assert slot.users["b"] is User.BUSY
    else:
        with pytest.raises(IllegalTransition, match=f"{event} of a is illegal while {holder}"):
            slot.process(event, "a")
        assert picture(slot) == before


@pytest.mark.parametrize("event", ABOUT_USERS)
def test_nothing_touches_a_free_slot(event: Event) -> None:
    slot = Reservation(0)
    with pytest.raises(IllegalTransition):
        slot.process(event, "a")
    assert slot.name == "free" and slot.epoch == 1


@pytest.mark.parametrize("event", sorted(NOT_FOR_IMPORT))
def test_what_proves_a_writer_quiet_says_nothing_of_the_import(event: Event) -> None:
    slot = at(Holder.HELD, User.QUIET)
    slot.process(Event.OPENED, IMPORT)
    slot.process(Event.RELEASE)
    with pytest.raises(IllegalTransition):
        slot.process(event, IMPORT)
    assert slot.users[IMPORT] is User.BUSY


def test_no_fence_while_the_import_reads() -> None:
    slot = at(Holder.HELD, User.BUSY)
    slot.process(Event.OPENED, IMPORT)
    slot.process(Event.RELEASE)
    with pytest.raises(IllegalTransition, match="fenced of a"):
        slot.process(Event.FENCED, "a")
    slot.process(Event.CLOSED, IMPORT)
    slot.process(Event.FENCED, "a")


def test_the_import_opens_only_while_held() -> None:
    slot = at(Holder.RELEASED, User.BUSY)
    with pytest.raises(IllegalTransition):
        slot.process(Event.OPENED, IMPORT)


def test_an_unknown_writer_is_illegal() -> None:
    slot = at(Holder.HELD, User.BUSY)
    with pytest.raises(IllegalTransition, match="closed of stranger"):
        slot.process(Event.CLOSED, "stranger")


def test_a_holder_event_names_no_user_and_a_user_event_names_one() -> None:
    slot = at(Holder.HELD, User.BUSY)
    for event, user in ((Event.RELEASE, "a"), (Event.CLOSED, "")):
        with pytest.raises(IllegalTransition):
            slot.process(event, user)


def test_the_grant_opens_every_writer_in_one_step() -> None:
    slot = Reservation(0)
    steps = slot.grant(["a", "b"])
    assert [(s.event, s.user) for s in steps] == [
        (Event.RESERVE, ""), (Event.OPENED, "a"), (Event.OPENED, "b"),
    ]  # fmt: skip
    assert slot.users == {"a": User.BUSY, "b": User.BUSY, IMPORT: User.QUIET}
    with pytest.raises(IllegalTransition):
        slot.grant(["a", "b"])


@pytest.mark.parametrize("proofs", list(itertools.product(PROOFS, repeat=2)))
@pytest.mark.parametrize("lost", list(itertools.product([False, True], repeat=2)))
def test_free_needs_release_and_a_proof_of_each_writer(
    proofs: tuple[Event, Event], lost: tuple[bool, bool]
) -> None:
    """R15, R16, R17: a release alone frees nothing; a loss proves nothing; the last proof frees,
    and the epoch grows by one."""
    slot = Reservation(0)
    slot.grant(["a", "b"])
    slot.process(Event.RELEASE)
    assert slot.name == "draining"
    for writer, is_lost in zip("ab", lost, strict=True):
        if is_lost:
            slot.process(Event.LOST, writer)
            assert slot.name == "orphaned"
    first = slot.process(proofs[0], "a")
    assert not first.freed and slot.holder is Holder.RELEASED
    last = slot.process(proofs[1], "b")
    assert last.freed and slot.name == "free"
    assert (last.epoch, slot.epoch, slot.users) == (1, 2, {IMPORT: User.QUIET})


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_free_comes_last_in_any_order(order: tuple[int, ...]) -> None:
    """The holder's end, two writers' and the import's: only all four free the slot."""
    slot = Reservation(0)
    slot.grant(["a", "b"])
    slot.process(Event.OPENED, IMPORT)
    ends = [
        (Event.RELEASE, ""), (Event.CLOSED, "a"), (Event.CLOSED, "b"), (Event.CLOSED, IMPORT),
    ]  # fmt: skip
    steps = [slot.process(*ends[i]) for i in order]
    assert [s.freed for s in steps] == [False, False, False, True]


def test_joint_names() -> None:
    slot = Reservation(0)
    assert slot.name == "free"
    slot.grant(["a"])
    assert slot.name == "filling"
    slot.process(Event.CLOSED, "a")
    assert slot.name == "ready"
    slot.process(Event.OPENED, IMPORT)
    assert slot.name == "importing"
    slot.process(Event.RELEASE)
    assert slot.name == "draining"
