"""The session layer, rule by rule: events in, actions out; no sockets, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zpd.actions import Action, Deliver, InboundDown, LinkDown, LinkUp, PeerDown, PeerUp, Refusal
from zpd.blobs import Blob
from zpd.greeting import MAX_CLIENTS
from zpd.ids import Attempt, Term
from zpd.lines import FIRST_DELAY, LAST_DELAY, REFUSED_DELAY
from zpd.links import Links
from zpd.messages import (
    MESSAGES,
    Ask,
    Cancel,
    Ended,
    Heartbeat,
    Hello,
    Message,
    Note,
    Opened,
    Refused,
    StatusAsk,
    Welcome,
)
from zpd.place import Place
from zpd.requests import Sampling
from zpd.session import route_of
from zpd.sockets import Dial, Hangup, Outgoing, SendBack, SendOn
from zpd.sums import OFF
from zpd.topology import Timeouts
from zpd.wire import PROTOCOL, Envelope, decode, encode

TIMES = Timeouts(heartbeat=1.0, suspect=5.0, handshake=3.0)
IDLE = Heartbeat(0, False)
FACTS = {"topology": "abc", "model": "m1"}
A, B, ME = "a", "b", 7  # this node is ``me``; it dials a on both classes, and a and b dial it


def place(**changes: Any) -> Place:
    made = Place(
        "me", "decode", ME,
        dials=((A, "control", "tcp://a:1"), (A, "bulk", "tcp://a:1")),
        roles={A: "coordinator", B: "prefill"},
        expected=frozenset({(A, "control"), (B, "control"), (B, "bulk")}),
        timeouts=TIMES,
    )  # fmt: skip
    return replace(made, **changes)


class Bench:
    """Drives one ``Links``; keeps what it sent, by kind."""

    def __init__(self, where: Place | None = None, **facts: str) -> None:
        self.links = Links(where or place(), facts or FACTS)
        self.now = 100.0

    def start(self) -> list[Dial]:
        return [d for d in self.links.start(self.now) if isinstance(d, Dial)]

    def tick(self, after: float = 0.0, beat: Heartbeat = IDLE) -> list[Action]:
        self.now += after
        return self.links.tick(self.now, beat)

    # As the peer: its frames on a socket that this node dialled.

    def answer(
        self, number: int, message: Message, seq: int, source: str = A, incarnation: int = 3,
        blobs: Sequence[Blob] = (), checksum: str = OFF, **envelope: Any,
    ) -> list[Action]:  # fmt: skip
        head = replace(Envelope(source, incarnation, "me", ME, number, seq), **envelope)
        frames = encode(head, message, blobs, checksum=checksum)
        return self.links.received(number, frames, self.now)

    def open(self, number: int, incarnation: int = 3, role: str = "coordinator") -> list[Action]:
        self.links.connected(number, self.now)
        welcome = Welcome(PROTOCOL, role, FACTS)
        return self.answer(number, welcome, 0, incarnation=incarnation)

    # As the peer: its frames in this node's mailbox.

    def mail(
        self, message: Message, seq: int, source: str = B, incarnation: int = 3, session: int = 1,
        blobs: Sequence[Blob] = (), checksum: str = OFF, route: bytes = b"", **envelope: Any,
    ) -> list[Action]:  # fmt: skip
        head = replace(Envelope(source, incarnation, "me", ME, session, seq), **envelope)
        came = route or route_of(source, incarnation, session)
        frames = encode(head, message, blobs, checksum=checksum)
        return self.links.mailed(came, frames, self.now)

    def hello(
        self, source: str = B, incarnation: int = 3, session: int = 1, link: str = "control",
        role: str = "prefill", facts: dict[str, str] | None = None, protocol: int = PROTOCOL,
        **envelope: Any,
    ) -> list[Action]:  # fmt: skip
        message = Hello(protocol, role, link, FACTS if facts is None else facts)
        to = {"target_incarnation": 0, **envelope}
        return self.mail(message, 0, source, incarnation, session, **to)

    def client(self, name: str = "you", **changes: Any) -> list[Action]:
        to = {"role": "client", "facts": {}, "target": "", "incarnation": 1, **changes}
        return self.hello(name, **to)


def sent(actions: Sequence[Action]) -> list[Message]:
    return [decode(a.frames)[1] for a in actions if isinstance(a, SendOn | SendBack)]


def heads(actions: Sequence[Action]) -> list[Envelope]:
    return [decode(a.frames)[0] for a in actions if isinstance(a, SendOn | SendBack)]


def of(kind: type[Any], actions: Sequence[Action]) -> list[Any]:
    return [a for a in actions if isinstance(a, kind)]


def reasons(actions: Sequence[Action]) -> list[str]:
    return [a.reason for a in of(Refusal, actions)]


# ---- dialling ------------------------------------------------------------------------------------


def test_each_link_is_dialled_with_its_own_number_and_route() -> None:
    assert Bench().start() == [
        Dial(1, A, "control", "tcp://a:1", b"me#7#1"),
        Dial(2, A, "bulk", "tcp://a:1", b"me#7#2"),
    ]


def test_hello_goes_first_and_names_everything() -> None:
    bench = Bench()
    bench.start()
    actions = bench.links.connected(1, bench.now)
    assert sent(actions) == [Hello(PROTOCOL, "decode", "control", FACTS)]
    assert heads(actions) == [Envelope("me", ME, A, 0, 1, 0)]


def test_nothing_but_hello_before_welcome() -> None:
    bench = Bench()
    bench.start()
    assert bench.links.send(A, StatusAsk()) is None
    bench.links.connected(1, bench.now)
    assert bench.links.send(A, StatusAsk()) is None
    bench.open(2)
    assert bench.links.send(A, StatusAsk()) is None, "the other class is another session"
    assert bench.links.send(A, StatusAsk(), bulk=True) is not None


def test_welcome_opens_the_link_and_the_peer_is_up() -> None:
    bench = Bench()
    bench.start()
    assert bench.open(1) == [PeerUp(A, 3), LinkUp(A, "control", 1)]
    assert bench.open(2) == [LinkUp(A, "bulk", 2)]
    assert bench.links.incarnation_of(A) == 3


def test_frames_are_numbered_from_hello_on() -> None:
    bench = Bench()
    bench.start()
    bench.open(1)
    seqs = []
    for _ in range(3):
        outgoing = bench.links.send(A, StatusAsk())
        assert outgoing is not None
        seqs += heads([outgoing])
    assert seqs == [Envelope("me", ME, A, 3, 1, n) for n in (1, 2, 3)]


def test_a_number_that_was_not_sent_is_used_again() -> None:
    bench = Bench()
    bench.start()
    bench.open(1)
    outgoing = bench.links.send(A, StatusAsk())
    assert outgoing is not None
    bench.links.unsent(outgoing)
    again = bench.links.send(A, StatusAsk())
    assert again is not None
    assert again.seq == outgoing.seq


def test_redials_back_off_to_a_second_with_a_fresh_socket_each_time() -> None:
    bench = Bench(place(dials=((A, "control", "tcp://a:1"),)))
    number, delays = bench.start()[0].number, []
    for _ in range(6):
        assert bench.links.closed(number, "connection refused", bench.now) == [Hangup(number)]
        before = bench.now
        bench.now = bench.links.due
        delays.append(round(bench.now - before, 3))
        (redial,) = of(Dial, bench.tick())
        assert redial.number > number
        assert redial.route == route_of("me", ME, redial.number)
        number = redial.number
    assert delays == [FIRST_DELAY, 0.2, 0.4, 0.8, LAST_DELAY, LAST_DELAY]


def test_an_open_session_resets_the_back_off() -> None:
    bench = Bench(place(dials=((A, "control", "tcp://a:1"),)))
    number = bench.start()[0].number
    for _ in range(4):
        bench.links.closed(number, "refused", bench.now)
        bench.now = bench.links.due
        number = of(Dial, bench.tick())[0].number
    bench.open(number)
    bench.links.closed(number, "broke", bench.now)
    assert bench.links.due == bench.now + FIRST_DELAY


def test_the_handshake_has_a_budget() -> None:
    bench = Bench(place(dials=((A, "control", "tcp://a:1"),)))
    bench.start()
    bench.links.connected(1, bench.now)
    assert not of(Hangup, bench.tick(TIMES.handshake - 0.01))
    assert bench.tick(0.01) == [Hangup(1)]
    assert bench.links.failed(A, "control") == "no answer in 3.0 s"


def test_a_lost_session_is_told_and_what_it_did_not_send_is_gone() -> None:
    bench = Bench()
    bench.start()
    bench.open(1)
    bench.links.send(A, StatusAsk())
    assert bench.links.closed(1, "the connection broke", bench.now) == [
        Hangup(1),
        LinkDown(A, "control", 1, "the connection broke"),
        PeerDown(A, 3, "the connection broke"),
    ]
    assert bench.links.send(A, StatusAsk()) is None
    (redial,) = of(Dial, bench.tick(FIRST_DELAY))
    assert sent(bench.links.connected(redial.number, bench.now)) == [
        Hello(PROTOCOL, "decode", "control", FACTS)
    ]
    bench.open(redial.number)
    outgoing = bench.links.send(A, StatusAsk())
    assert outgoing is not None
    assert outgoing.seq == 1, "the new session's own count"


def test_events_of_an_old_socket_mean_nothing() -> None:
    bench = Bench()
    bench.start()
    bench.open(1)
    bench.links.closed(1, "broke", bench.now)
    assert bench.links.closed(1, "broke", bench.now) == []
    assert bench.links.connected(1, bench.now) == []
    assert bench.answer(1, StatusAsk(), 1) == []


def test_who_says_hello_is_dialled_soon() -> None:
    bench = Bench()
    bench.start()
    for number in (1, 2):
        bench.links.closed(number, "refused", bench.now)
    for _ in range(2):
        bench.now = bench.links.due
        for d in of(Dial, bench.tick()):
            bench.links.closed(d.number, "refused", bench.now)
    assert bench.links.due > bench.now
    bench.hello(A, role="coordinator")
    assert len(of(Dial, bench.tick())) == 2


# ---- greeting ------------------------------------------------------------------------------------

REFUSED_HELLOS: list[tuple[str, dict[str, Any], Refused]] = [
    ("protocol", {"protocol": 9}, Refused("mismatch", "protocol", str(PROTOCOL), "9")),
    ("role", {"role": "decode"}, Refused("mismatch", "role", "prefill", "decode")),
    ("fact", {"facts": {**FACTS, "model": "m2"}}, Refused("mismatch", "model", "m1", "m2")),
    ("link", {"source": A, "link": "bulk"}, Refused("link", "link", "not in the topology", "bulk")),
    ("class", {"link": "x"}, Refused("link", "link", "not in the topology", "x")),
    ("name", {"target": "other"}, Refused("target", "name", "me", "other")),
    ("life", {"target_incarnation": 6}, Refused("target", "incarnation", "7", "6")),
    ("zero", {"incarnation": 0}, Refused("old_incarnation", "incarnation", "0", "0")),
    ("stranger", {"source": "x"}, Refused("unknown_node", "role", "client", "prefill")),
]  # fmt: skip


@pytest.mark.parametrize(("hello", "refused"), [r[1:] for r in REFUSED_HELLOS],
                         ids=[r[0] for r in REFUSED_HELLOS])  # fmt: skip
def test_a_hello_that_does_not_fit_is_refused_by_field(
    hello: dict[str, Any], refused: Refused
) -> None:
    bench = Bench()
    bench.start()
    actions = bench.hello(**hello)
    assert sent(actions) == [refused]
    (refusal,) = of(Refusal, actions)
    assert (refusal.reason, refusal.session) == (refused.reason, True)
    assert refused.mine in refusal.detail
    assert refused.yours in refusal.detail
    assert len(actions) == 2, "and nothing else happens"


def test_a_long_fact_is_refused_like_any_other() -> None:
    bench = Bench()
    bench.start()
    (refused,) = sent(bench.hello(facts={"model": "x" * 65_000}))
    assert refused == Refused("mismatch", "model", "m1", "x" * 256)


def test_facts_that_only_one_side_names_do_not_matter() -> None:
    bench = Bench()
    bench.start()
    assert not reasons(bench.hello(facts={"topology": "abc", "of its own": "x"}))


def test_hello_is_answered_with_welcome_and_the_peer_is_up() -> None:
    bench = Bench()
    bench.start()
    actions = bench.hello()
    assert sent(actions) == [Welcome(PROTOCOL, "decode", FACTS)]
    assert heads(actions) == [Envelope("me", ME, B, 3, 1, 0)]
    assert of(PeerUp, actions) == [PeerUp(B, 3)]
    assert bench.hello(session=2, link="bulk")[1:] == [], "bulk says nothing of the peer"


def test_a_refused_dialler_reports_it_and_tries_again_slowly() -> None:
    bench = Bench(place(dials=((A, "control", "tcp://a:1"),)))
    bench.start()
    bench.links.connected(1, bench.now)
    actions = bench.answer(1, Refused("mismatch", "model", "m2", "m1"), 0)
    assert reasons(actions) == ["refused_by_peer"]
    assert "model is 'm2' at a, 'm1' at me" in actions[0].detail  # type: ignore[union-attr]
    assert not of(Dial, bench.tick(REFUSED_DELAY - 0.01))
    assert of(Dial, bench.tick(0.01))


def test_a_welcome_is_compared_too() -> None:
    bench = Bench()
    bench.start()
    bench.links.connected(1, bench.now)
    actions = bench.answer(1, Welcome(PROTOCOL, "coordinator", {"model": "m2"}), 0)
    assert reasons(actions) == ["mismatch"]
    assert of(Hangup, actions) == [Hangup(1)]
    assert not bench.links.is_open(A, "control")


@pytest.mark.parametrize("message", [StatusAsk(), IDLE, Opened(Term(1, 1), A)], ids=str)
def test_anything_before_welcome_ends_the_try(message: Message) -> None:
    bench = Bench()
    bench.start()
    bench.links.connected(1, bench.now)
    actions = bench.answer(1, message, 0)
    assert reasons(actions) == ["early"]
    assert of(Hangup, actions) == [Hangup(1)]


def test_frames_without_a_hello_are_refused_and_their_sender_is_told() -> None:
    bench = Bench()
    bench.start()
    actions = bench.mail(StatusAsk(), 0)
    assert sent(actions) == [Refused("no_session")]
    assert reasons(actions) == ["no_session"]
    assert reasons(bench.mail(Hello(PROTOCOL, "prefill", "control", FACTS), 3)) == ["no_session"]


# ---- order ---------------------------------------------------------------------------------------


def opened() -> Bench:
    """Both directions: 1 dialled to a, and b dialled control with its session 1."""
    bench = Bench()
    bench.start()
    bench.open(1)
    bench.open(2)
    bench.hello()
    return bench


Send = Callable[[Message, int], list[Action]]


def ends(bench: Bench) -> list[tuple[Send, str]]:
    return [(lambda m, seq: bench.answer(1, m, seq), A), (lambda m, seq: bench.mail(m, seq), B)]


@pytest.mark.parametrize("end", [0, 1], ids=["dialled", "inbound"])
def test_messages_in_order_are_delivered(end: int) -> None:
    send, peer = ends(opened())[end]
    for seq in (1, 2, 3):
        assert send(StatusAsk(), seq) == [Deliver(peer, StatusAsk(), ())]


@pytest.mark.parametrize("checksum", [OFF, "crc32"])
def test_who_agreed_on_a_checksum_must_put_it_in(checksum: str) -> None:
    blobs = (Blob.text("x"),)
    bench = Bench(place(checksum="sum64"))
    number = bench.start()[0].number
    bench.open(number)
    assert reasons(bench.answer(number, Note("n"), 1, blobs=blobs, checksum=checksum)) == [
        "checksum"
    ]
    assert of(Deliver, bench.answer(number, Note("n"), 1, blobs=blobs, checksum="sum64"))
    bench.hello()
    assert reasons(bench.mail(Note("n"), 1, blobs=blobs, checksum=checksum)) == ["checksum"]
    assert of(Deliver, bench.mail(Note("n"), 1, blobs=blobs, checksum="sum64"))


def test_a_client_puts_no_checksum_in() -> None:
    bench = Bench(place(checksum="sum64"))
    bench.client()
    assert of(Deliver, bench.mail(Note("n"), 1, "you", 1, blobs=(Blob.text("x"),)))


@pytest.mark.parametrize("end", [0, 1], ids=["dialled", "inbound"])
def test_a_duplicate_is_dropped_and_counted(end: int) -> None:
    send, _ = ends(opened())[end]
    send(StatusAsk(), 1)
    send(StatusAsk(), 2)
    for seq in (0, 1, 2):
        actions = send(StatusAsk(), seq)
        assert reasons(actions) == ["duplicate"]
        assert len(actions) == 1
    assert of(Deliver, send(StatusAsk(), 3))


def test_a_gap_ends_an_inbound_session_and_tells_the_dialler() -> None:
    bench = opened()
    actions = bench.mail(StatusAsk(), 2)
    why = "frame 1 is missing: 2 came"
    assert reasons(actions) == ["gap"]
    assert sent(actions) == [Refused("gap")]
    assert actions[2:] == [InboundDown(B, "control", why), PeerDown(B, 3, why)]
    assert reasons(bench.mail(StatusAsk(), 1)) == ["old_session"], "the late one comes too late"


def test_a_gap_ends_a_dialled_session() -> None:
    bench = opened()
    actions = bench.answer(1, StatusAsk(), 2)
    assert reasons(actions) == ["gap"]
    assert of(Hangup, actions) == [Hangup(1)]
    assert of(LinkDown, actions)
    assert of(PeerDown, actions)


def test_a_listener_that_refuses_an_open_session_ends_it() -> None:
    bench = opened()
    actions = bench.answer(1, Refused("gap"), 0)
    assert of(LinkDown, actions) == [LinkDown(A, "control", 1, "refused by a: gap")]
    assert bench.links.due == bench.now + FIRST_DELAY, "not slowly: it was open"


@pytest.mark.parametrize(
    "message",
    [Hello(PROTOCOL, "prefill", "control", FACTS), Welcome(PROTOCOL, "x", {})],
    ids=["hello", "welcome"],
)
def test_a_greeting_in_an_open_session_is_refused(message: Message) -> None:
    bench = opened()
    assert reasons(bench.mail(message, 1)) == ["unexpected"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"session": 9}, "old_session"),
        ({"target": "other"}, "target"),
        ({"target_incarnation": ME - 1}, "target"),
        ({"target_incarnation": 0}, "target"),
        ({"source": B}, "source"),
        ({"incarnation": 2}, "old_incarnation"),
        ({"incarnation": 4}, "incarnation"),
    ],
)
def test_a_frame_that_is_not_of_its_session_is_refused(
    changes: dict[str, Any], reason: str
) -> None:
    bench = opened()
    names = {"source": "source", "incarnation": "source_incarnation"}
    changes = {names.get(k, k): v for k, v in changes.items()}
    head = replace(Envelope(A, 3, "me", ME, 1, 1), **changes)
    actions = bench.links.received(1, encode(head, StatusAsk()), bench.now)
    assert reasons(actions) == [reason]
    assert len(actions) == 1
    assert of(Deliver, bench.answer(1, StatusAsk(), 1)), "and the session goes on"


def test_a_frame_on_anothers_connection_is_refused() -> None:
    bench = opened()
    actions = bench.mail(StatusAsk(), 1, route=b"b#3#2")
    assert reasons(actions) == ["routing"]


def test_frames_that_are_not_zpds_are_refused() -> None:
    bench = opened()
    assert reasons(bench.links.mailed(b"b#3#1", [b"GET / HTTP/1.1"], bench.now)) == ["parts"]
    assert reasons(bench.links.received(1, [b"XXXX", b""], bench.now)) == ["magic"]


# ---- lives ---------------------------------------------------------------------------------------


def test_a_new_incarnation_replaces_all_sessions_of_the_old() -> None:
    bench = opened()
    bench.hello(A, role="coordinator", session=4)
    actions = bench.hello(A, role="coordinator", incarnation=4, session=1)
    why = "replaced by incarnation 4"
    assert actions[0] == InboundDown(A, "control", why)
    assert of(LinkDown, actions) == [
        LinkDown(A, "control", 1, why), LinkDown(A, "bulk", 2, why),
    ]  # fmt: skip
    assert of(PeerDown, actions) == [PeerDown(A, 3, why)]
    assert of(PeerUp, actions) == [PeerUp(A, 4)]
    assert bench.links.incarnation_of(A) == 4
    assert reasons(bench.mail(StatusAsk(), 1, A, 3, 4)) == ["old_incarnation"]


def test_a_new_incarnation_behind_a_dialled_address_replaces_the_old_too() -> None:
    bench = opened()
    bench.hello(A, role="coordinator", session=4)
    bench.links.closed(1, "broke", bench.now)
    (redial,) = of(Dial, bench.tick(FIRST_DELAY))
    actions = bench.open(redial.number, incarnation=5)
    assert of(InboundDown, actions)
    assert of(PeerDown, actions) == [PeerDown(A, 3, "replaced by incarnation 5")]
    assert actions[-2:] == [PeerUp(A, 5), LinkUp(A, "control", redial.number)]


def test_an_old_incarnation_is_refused_both_ways() -> None:
    bench = opened()
    actions = bench.hello(B, incarnation=2, session=9)
    assert sent(actions) == [Refused("old_incarnation", "incarnation", "3", "2")]
    bench.links.closed(1, "broke", bench.now)
    (redial,) = of(Dial, bench.tick(FIRST_DELAY))
    actions = bench.open(redial.number, incarnation=2)
    assert reasons(actions) == ["old_incarnation"]
    assert of(Hangup, actions)


def test_a_peer_that_dials_again_replaces_its_own_session() -> None:
    bench = opened()
    actions = bench.hello(session=2)
    assert actions[0] == InboundDown(B, "control", "the peer dialled again")
    assert sent(actions) == [Welcome(PROTOCOL, "decode", FACTS)]
    assert sent(bench.hello(session=1)) == [Refused("old_session", "session", "2", "1")]
    assert reasons(bench.mail(StatusAsk(), 1, session=1)) == ["old_session"]


def test_a_replayed_hello_opens_nothing() -> None:
    bench = opened()
    bench.links.gone(b"b#3#1", bench.now)
    assert reasons(bench.hello(session=1)) == ["old_session"]


def test_a_peer_stays_up_while_one_control_session_is_open() -> None:
    bench = opened()
    assert not of(PeerUp, bench.hello(A, role="coordinator", session=4))
    assert not of(PeerDown, bench.links.closed(1, "broke", bench.now))
    actions = bench.links.gone(b"a#3#4", bench.now)
    assert of(PeerDown, actions) == [PeerDown(A, 3, "the connection broke")]


def test_bulk_sessions_do_not_make_a_peer_live() -> None:
    bench = Bench()
    bench.start()
    assert not of(PeerUp, bench.open(2))
    assert not of(PeerDown, bench.links.closed(2, "broke", bench.now))


# ---- heartbeats ----------------------------------------------------------------------------------


def test_heartbeats_leave_on_every_session() -> None:
    bench = opened()
    assert sent(bench.tick(TIMES.heartbeat - 0.01)) == []
    assert sent(bench.tick(0.01, Heartbeat(9, True))) == [Heartbeat(9, True, bench.now)] * 3
    assert bench.links.due == bench.now + TIMES.heartbeat


@pytest.mark.parametrize("life", [IDLE, StatusAsk()], ids=["heartbeat", "any other frame"])
def test_any_frame_is_life_and_silence_ends_a_session(life: Message) -> None:
    bench = opened()
    bench.tick(TIMES.suspect - 0.01)
    bench.answer(1, life, 1)
    bench.mail(life, 1)
    actions = bench.tick(0.01)
    why = f"silent for {TIMES.suspect} s"
    assert of(LinkDown, actions) == [LinkDown(A, "bulk", 2, why)]
    assert not of(PeerDown, actions)
    actions = bench.tick(TIMES.suspect)
    assert of(InboundDown, actions) == [InboundDown(B, "control", "silent for 5.0 s")]
    assert {p.peer for p in of(PeerDown, actions)} == {A, B}
    assert Refused("silent") in sent(actions)


def test_heartbeats_leave_before_anybody_hears_of_an_end() -> None:
    """They have their numbers by then, and whoever hears of it may send on the same sessions."""
    bench = opened()
    bench.tick(TIMES.suspect - TIMES.heartbeat)
    bench.answer(1, IDLE, 1)
    bench.mail(IDLE, 1)
    actions = bench.tick(TIMES.heartbeat)
    ends = [i for i, a in enumerate(actions) if isinstance(a, LinkDown)]
    frames = [i for i, a in enumerate(actions) if isinstance(a, SendOn | SendBack)]
    assert ends and frames and max(frames) < min(ends)


def stalls(bench: Bench) -> list[PeerDown]:
    """Heartbeats with the same work for as long as it takes to be suspected."""
    seq, downs = 1, []
    for _ in range(round(TIMES.suspect) + 1):
        bench.mail(Heartbeat(5, True), seq)
        seq += 1
        downs += of(PeerDown, bench.tick(1.0))
        bench.answer(1, IDLE, seq - 1)
        bench.answer(2, IDLE, seq - 1)
    return downs


def test_busy_without_progress_is_down_though_its_session_stays() -> None:
    bench = opened()
    (down,) = stalls(bench)
    assert (down.peer, down.reason) == (B, "stalled: busy without progress for 5.0 s")
    assert of(Deliver, bench.mail(StatusAsk(), 7)), "its session is open"


def test_progress_brings_a_stalled_peer_back_up() -> None:
    bench = opened()
    stalls(bench)
    assert bench.mail(Heartbeat(5, True), 7) == []
    assert bench.mail(Heartbeat(6, True), 8) == [PeerUp(B, 3)]


def test_a_stalled_peer_that_dials_again_is_up_only_once_it_moves() -> None:
    bench = opened()
    stalls(bench)
    assert not of(PeerUp, bench.hello(session=2))
    assert bench.mail(Heartbeat(5, True), 1, session=2) == []
    assert bench.mail(Heartbeat(5, False), 2, session=2) == [PeerUp(B, 3)]


def test_what_a_peer_said_before_a_silence_does_not_make_it_stalled_after() -> None:
    bench = opened()
    bench.mail(Heartbeat(5, True), 1)
    bench.links.gone(b"b#3#1", bench.now)
    bench.now += 2 * TIMES.suspect
    assert of(PeerUp, bench.hello(session=2)) == [PeerUp(B, 3)]
    assert B not in {p.peer for p in of(PeerDown, bench.tick())}


def test_a_new_life_of_a_stalled_peer_is_up_at_once() -> None:
    bench = opened()
    stalls(bench)
    assert of(PeerUp, bench.hello(incarnation=4)) == [PeerUp(B, 4)]


def test_idle_peers_and_peers_that_move_are_not_stalled() -> None:
    for beats in ([Heartbeat(5, False)] * 12, [Heartbeat(n, True) for n in range(12)]):
        bench = opened()
        for seq, beat in enumerate(beats, 1):
            bench.mail(beat, seq)
            bench.answer(1, IDLE, seq)
            bench.answer(2, IDLE, seq)
            assert not of(PeerDown, bench.tick(1.0))


# ---- clients -------------------------------------------------------------------------------------

ASK = Ask("one", "raw", 1, Sampling())


def test_a_client_is_welcome_whatever_its_facts_and_is_no_peer() -> None:
    bench = Bench()
    bench.start()
    actions = bench.client(facts={"model": "another"})
    assert sent(actions) == [Welcome(PROTOCOL, "decode", FACTS)]
    assert len(actions) == 1
    asked = bench.mail(ASK, 1, "you", 1, blobs=[Blob.text("hi")])
    assert [d.peer for d in of(Deliver, asked)] == ["you"]
    answer = bench.links.send("you", Opened(Term(1, 1), "me"))
    assert isinstance(answer, SendBack)
    assert answer.route == b"you#1#1"
    assert bench.links.send("you", Opened(Term(1, 1), "me"), bulk=True) is None


REFUSED_CLIENTS: list[tuple[str, dict[str, Any], Refused]] = [
    ("protocol", {"protocol": 1}, Refused("mismatch", "protocol", str(PROTOCOL), "1")),
    ("bulk", {"link": "bulk"}, Refused("link", "link", "control", "bulk")),
    ("name", {"name": "x" * 65}, Refused("client_name", "name", "1 to 64 characters", "x" * 65)),
    ("unseen", {"name": "x\n"}, Refused("client_name", "name", "1 to 64 characters", "x\n")),
    ("own", {"name": "me"}, Refused("client_name", "name", "1 to 64 characters", "me")),
    ("target", {"target": "d"}, Refused("target", "name", "me", "d")),
    ("a node", {"name": B}, Refused("mismatch", "role", "prefill", "client")),
]


@pytest.mark.parametrize(("hello", "refused"), [r[1:] for r in REFUSED_CLIENTS],
                         ids=[r[0] for r in REFUSED_CLIENTS])  # fmt: skip
def test_a_client_is_refused(hello: dict[str, Any], refused: Refused) -> None:
    bench = Bench()
    bench.start()
    if hello.get("name") == B:
        hello = {**hello, "target": "me", "incarnation": 3}
    assert sent(bench.client(**hello)) == [refused]


def test_a_client_may_say_only_what_clients_say() -> None:
    bench = Bench()
    bench.start()
    bench.client()
    allowed = []
    seq = 0
    for kind in MESSAGES:
        seq += 1
        message = _any(kind)
        if message is not None:
            allowed += [kind] if of(Deliver, bench.mail(message, seq, "you", 1)) else []
        else:
            seq -= 1
    assert allowed == [Cancel, StatusAsk, Note]


def _any(kind: type) -> Message | None:
    """A message of this kind; None for Ask (tested above) and those that need blobs."""
    some: list[Message] = [
        Ended(Attempt(1, 1), "x"), Opened(Term(1, 1), "a"), Cancel("u"), StatusAsk(), Refused("x"),
        Note("topic"),
    ]  # fmt: skip
    return next((m for m in some if type(m) is kind), None)


def test_too_many_clients_are_refused_until_one_goes() -> None:
    bench = Bench()
    bench.start()
    for n in range(MAX_CLIENTS):
        assert not reasons(bench.client(f"c{n}"))
    assert reasons(bench.client("late")) == ["too_many_clients"]
    assert not reasons(bench.client("c1", session=2)), "dialling again needs no more room"
    bench.links.gone(b"c0#1#1", bench.now)
    assert not reasons(bench.client("late", session=2))


def test_a_client_that_does_not_read_is_given_up() -> None:
    """Trap 7: what it gets is bounded by its reading alone."""
    bench = Bench()
    bench.start()
    bench.client()
    outgoing = bench.links.send("you", Refused("x"))
    assert outgoing is not None
    bench.links.full(outgoing)
    assert bench.links.due <= bench.now
    actions = bench.tick()
    assert reasons(actions) == ["full"]
    assert of(InboundDown, actions) == [InboundDown("you", "control", actions[0].detail)]  # type: ignore[union-attr]
    assert bench.links.send("you", Refused("x")) is None


def test_a_full_queue_between_nodes_costs_no_session() -> None:
    bench = opened()
    outgoing = bench.links.send(B, StatusAsk())
    assert outgoing is not None
    bench.links.full(outgoing)
    assert not reasons(bench.tick())
    again = bench.links.send(B, StatusAsk())
    assert again is not None
    assert again.seq == outgoing.seq


def test_a_silent_client_is_forgotten() -> None:
    bench = Bench()
    bench.start()
    bench.client()
    actions = bench.tick(TIMES.suspect)
    assert of(InboundDown, actions) == [InboundDown("you", "control", "silent for 5.0 s")]
    assert bench.links.send("you", StatusAsk()) is None
    assert bench.links.incarnation_of("you") == 0


def test_a_client_dials_an_address_and_learns_the_name() -> None:
    bench = Bench(Place.client("me", "tcp://a:1", TIMES, incarnation=ME))
    (dial,) = bench.start()
    assert heads(bench.links.connected(1, bench.now)) == [Envelope("me", ME, "", 0, 1, 0)]
    assert bench.open(1) == [LinkUp("", "control", dial.number)]
    outgoing = bench.links.send("", StatusAsk())
    assert outgoing is not None
    assert heads([outgoing]) == [Envelope("me", ME, A, 3, 1, 1)]
    assert bench.answer(1, Opened(Term(1, 1), A), 1) == [Deliver(A, Opened(Term(1, 1), A), ())]


# ---- who is answered where -----------------------------------------------------------------------


def test_a_dialled_link_is_the_only_way_and_others_are_answered_on_theirs() -> None:
    bench = Bench()
    bench.start()
    bench.hello(A, role="coordinator")
    assert bench.links.send(A, StatusAsk()) is None, "a is dialled, and that link is not open"
    bench.hello(B)
    outgoing: Outgoing | None = bench.links.send(B, StatusAsk())
    assert isinstance(outgoing, SendBack)
    assert outgoing.route == b"b#3#1"
    assert bench.links.send("nobody", StatusAsk()) is None


def test_statistics_show_every_session() -> None:
    bench = opened()
    bench.client()
    bench.links.closed(2, "broke", bench.now)
    shown = bench.links.statistics(bench.now + 1.0)
    assert shown["peers"][A] == {"up": True, "incarnation": 3, "seconds": 1.0, "why": ""}
    assert shown["links"] == [
        {"peer": A, "link": "control", "state": "open", "number": 1},
        {"peer": A, "link": "bulk", "state": "waiting", "number": 2, "why": "broke"},
    ]
    assert [(s["peer"], s["client"]) for s in shown["inbound"]] == [(B, False), ("you", True)]


# ---- nothing that a peer sends may raise --------------------------------------------------------

TEXTS = st.sampled_from(["", "me", A, B, "you", "x#1", "\n", "y" * 255])
NUMBERS = st.sampled_from([0, 1, 2, 3, 7, 2**63 - 1])
ENVELOPES = st.builds(Envelope, TEXTS, NUMBERS, TEXTS, NUMBERS, NUMBERS, NUMBERS)
SAID = st.one_of(
    st.builds(
        Hello,
        NUMBERS,
        st.sampled_from(["prefill", "coordinator", "client", ""]),
        st.sampled_from(["control", "bulk", ""]),
        st.dictionaries(st.sampled_from(["model", "topology", "z"]), st.text(max_size=9)),
    ),
    st.builds(Welcome, NUMBERS, st.sampled_from(["coordinator", ""]), st.just({})),
    st.builds(Refused, TEXTS, TEXTS, TEXTS, TEXTS),
    st.builds(Heartbeat, NUMBERS, st.booleans()),
    st.just(StatusAsk()),
    st.builds(Cancel, TEXTS),
)


@given(st.lists(st.tuples(st.integers(0, 3), ENVELOPES, SAID, st.booleans()), max_size=12))
def test_no_frames_of_any_peer_raise_or_break_the_books(
    frames: list[tuple[int, Envelope, Message, bool]],
) -> None:
    bench = opened()
    for number, head, message, routed in frames:
        parts = encode(head, message)
        if number:
            bench.links.received(number, parts, bench.now)
        else:
            own = route_of(head.source, head.source_incarnation, head.session)
            bench.links.mailed(own if routed else b"b#3#1", parts, bench.now)
    bench.tick(1.0)
    shown = bench.links.statistics(bench.now)
    open_control = {s["peer"] for s in shown["inbound"] if s["link"] == "control"}
    open_control |= {ln["peer"] for ln in shown["links"] if ln["state"] == "open"}
    assert {p for p, state in shown["peers"].items() if state["up"]} <= open_control
