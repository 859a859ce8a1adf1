"""What a node puts on the wire: arrays and texts as blobs, and nothing that a peer would refuse."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from zpd import wire
from zpd.blobs import DTYPES, Blob
from zpd.errors import Outcome, RemoteError, UserError, ZpdBug
from zpd.ids import Attempt, Term, Use
from zpd.messages import (
    MESSAGES,
    Accepted,
    Ask,
    Delta,
    Grant,
    Heartbeat,
    Kv,
    Refused,
    Release,
    Status,
    Token,
)
from zpd.requests import Sampling
from zpd.schema import CUT, LONG, MAX_ITEMS, MAX_NAME, MAX_TEXT, codec
from zpd.wire import MAX_HEADER, Envelope

ENVELOPE = Envelope("coordinator", 7, "stage0", 3, 2, 41)
ATT = Attempt(1, 2)


def joined(parts: list[Any]) -> list[bytes]:
    return [bytes(part) for part in parts]


# ---- what goes through -----------------------------------------------------------------------


def test_an_outcome_travels_as_a_plain_string() -> None:
    sent = Release(Attempt(1, 2), Outcome.CANCELLED, False)
    got = wire.decode(joined(wire.encode(ENVELOPE, sent)))[1]
    assert got == sent
    assert type(got.reason) is str


@pytest.mark.parametrize("name", sorted(DTYPES))
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (0,), (2, 0, 4)])
def test_an_array_comes_back_equal_and_without_a_copy(name: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).astype(DTYPES[name]).reshape(shape)
    blob = Blob.of(array, name)
    assert blob.nbytes == array.nbytes
    assert blob.data.obj is not None
    if array.size:
        assert np.shares_memory(array, np.asarray(blob.data))
    sent = Kv(Use(1, 0, 0, 0), Term(1, 1), "s0", 0, 1, 0, 1)
    parts = wire.encode(ENVELOPE, sent, (blob, blob))
    assert parts[2] is blob.data
    arrived = joined(parts)
    got = wire.decode(arrived)[2][0]
    assert got.data.obj is arrived[2]
    assert got.numpy().dtype == array.dtype
    assert got.numpy().shape == shape
    np.testing.assert_array_equal(got.numpy(), array)


def test_bfloat16_travels_as_its_bits() -> None:
    bits = np.array([0x3F80, 0xC000], np.uint16)  # 1.0, -2.0
    blob = Blob.of(bits, "bfloat16")
    assert (blob.dtype, blob.shape, bytes(blob.data)) == ("bfloat16", (2,), b"\x80\x3f\x00\xc0")


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.zeros((2, 3), np.float32).T, None),
        (np.zeros(4, np.float32)[::2], None),
        (np.zeros(2, np.uint16), None),
        (np.zeros(2, np.float64), None),
        (np.zeros(2, ">f4"), None),
        (np.zeros(2, np.float32), "bfloat16"),
        (np.zeros(2, np.int32), "float32"),
    ],
)
def test_an_array_that_cannot_be_shared_is_a_bug(array: np.ndarray, dtype: str | None) -> None:
    with pytest.raises(ZpdBug):
        Blob.of(array, dtype)


@pytest.mark.parametrize("text", ["", "plain", "héllo 漢字 🙂", "\x00"])
def test_text(text: str) -> None:
    assert Blob.text(text).as_text() == text


def test_text_that_is_none() -> None:
    for blob in (
        Blob("uint8", (1,), memoryview(b"\xff")),
        Blob("uint8", (1, 1), memoryview(b"a")),
        Blob.of(np.zeros(1, np.int32)),
    ):
        with pytest.raises(RemoteError, match="blob"):
            blob.as_text()
    with pytest.raises(UserError, match="not Unicode"):
        Blob.text("\ud800")


# ---- what must not leave ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (Heartbeat(-1, True), "Heartbeat.work"),
        (Heartbeat(2**63, True), "Heartbeat.work"),
        (Heartbeat(1.0, True), "Heartbeat.work"),  # type: ignore[arg-type]
        (Heartbeat("1", True), "Heartbeat.work"),  # type: ignore[arg-type]
        (Heartbeat(None, True), "Heartbeat.work"),  # type: ignore[arg-type]
        (Heartbeat(2**64, True), "Heartbeat.work"),
        (Heartbeat(1, 1), "Heartbeat.busy"),  # type: ignore[arg-type]
        (Grant(ATT, (1, 0, 0, 0)), "Grant.use"),  # type: ignore[arg-type]
        (Grant((1, 2), Use(1, 0, 0, 0)), "Grant.att"),  # type: ignore[arg-type]
        (Grant(ATT, Use(1, 0, 0, 0), float("nan")), "Grant.waited"),
        (Token(ATT, 0, [1], ""), "Token.ids"),  # type: ignore[arg-type]
        (Token(ATT, 0, (1,) * (MAX_ITEMS + 1)), "Token.ids"),
        (Token(ATT, 0, (), "", {"kv": float("inf")}), "Token.spans"),
        (Delta("u", "x" * MAX_HEADER, ()), "header"),
        (Delta("u", "\ud800", ()), "not Unicode"),
        (Token(ATT, 0, (), "x" * 256), "Token.finish"),
        (Release(ATT, 5, True), "Release.reason"),  # type: ignore[arg-type]
        (ATT, "not a message"),
    ],
)
def test_a_message_that_a_peer_would_refuse_is_a_bug(message: Any, said: str) -> None:
    with pytest.raises(ZpdBug, match=said):
        wire.encode(ENVELOPE, message)


@pytest.mark.parametrize("work", [True, np.int64(1), np.uint8(1)], ids=repr)
def test_whatever_is_a_whole_number_arrives_as_an_int(work: Any) -> None:
    got = wire.decode(joined(wire.encode(ENVELOPE, Heartbeat(work, True))))[1]
    assert isinstance(got, Heartbeat)
    assert (got.work, type(got.work)) == (1, int)


def test_what_is_packed_once_for_equal_rests_is_never_stale() -> None:
    """A map can change after it was sent; what cannot may be packed once."""
    seal, spans = wire.Seal(ENVELOPE), {"kv": 1.0}
    for value in (1.0, 2.0):
        spans["kv"] = value
        got = wire.decode(joined(seal.encode(1, Token(ATT, 0, (), "", spans))))[1]
        assert isinstance(got, Token)
        assert got.spans == {"kv": value}
    for n, size in ((1, 4), (2, 8), (3, 8), (4, 4)):
        blob = Blob("uint8", (size,), memoryview(bytes(size)))
        sent = Status(True, "")
        got_seq = wire.decode(joined(seal.encode(n, sent, [blob])))
        assert (got_seq[0].seq, got_seq[1], got_seq[2][0].shape) == (n, sent, (size,))


def test_names_have_255_bytes() -> None:
    names = ["é" * n + "x" for n in (127, 128)]
    assert len(names[0].encode()) == MAX_NAME
    wire.encode(ENVELOPE, Accepted(names[0], "u", 1))
    with pytest.raises(ZpdBug, match=r"Accepted\.label"):
        wire.encode(ENVELOPE, Accepted(names[1], "u", 1))


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (Ask("x" * 256, "raw", 1, Sampling()), r"Ask\.label"),
        (Ask("\ud800", "raw", 1, Sampling()), "not Unicode"),
        (Ask("", "raw", -1, Sampling()), r"Ask\.max_tokens"),
        (Ask("", "raw", 1, Sampling(seed=2**63)), r"Ask\.sampling\.seed"),
        (Ask("", "raw", 1, Sampling(logprobs=-2)), r"Ask\.sampling\.logprobs"),
        (Ask("", "raw", 1, Sampling(), ("x" * 256,)), r"Ask\.stop"),
        (Ask("", "raw", 1, Sampling(), ("\ud800",)), "not Unicode"),
        (Ask("", "raw", 1, Sampling(), ("x" * 255,) * 256), "header"),
        (Ask("", "raw", 1, Sampling(), timeout=float("inf")), r"Ask\.timeout"),
    ],
    ids=range(9),
)
def test_what_a_person_typed_is_no_bug(ask: Ask, said: str) -> None:
    with pytest.raises(UserError, match=said):
        wire.encode(ENVELOPE, ask, [Blob.text("")])


@pytest.mark.parametrize("text", ["x" * 10**6, "é" * 10**6, "x" + "é" * 4000, "\ud800" * 5000])
def test_a_free_text_of_any_length_is_cut_and_leaves(text: str) -> None:
    parts = wire.encode(ENVELOPE, Refused("mismatch", "k" * 255, text, text))
    got = wire.decode(joined(parts))[1]
    assert isinstance(got, Refused)
    assert got.mine == got.yours
    assert MAX_TEXT - 1 <= len(got.mine.encode()) <= MAX_TEXT
    assert text.encode(errors="replace").startswith(got.mine.encode())


AB = memoryview(b"ab")


@pytest.mark.parametrize(
    "blobs",
    [
        (),
        (Blob("uint8", (2,), AB), Blob("uint8", (2,), AB)),
        (Blob("float64", (), memoryview(bytes(8))),),
        (Blob("uint8", (3,), AB),),
        (Blob("uint8", (-2,), AB),),
        (Blob("uint8", (True, 2), AB),),
        (Blob("uint8", (1,) * 9, AB[:1]),),
        (Blob("uint8", (2,), memoryview(b"abcd")[::2]),),
    ],
)
def test_bad_blobs_do_not_leave(blobs: tuple[Blob, ...]) -> None:
    with pytest.raises(ZpdBug, match="Status"):
        wire.encode(ENVELOPE, Status(True, ""), blobs)


# ---- the schema ------------------------------------------------------------------------------


def test_an_annotation_without_a_codec_is_an_error_at_import() -> None:
    for kind in (list[int], bytes, int | None, tuple[int, str], dict[int, str], set[int]):
        with pytest.raises(TypeError, match=r"X\.y"):
            codec(kind, "X.y")


def test_every_text_is_a_field_of_something() -> None:
    known = {f.name for cls in MESSAGES for f in fields(cls)}
    assert known >= CUT | LONG
