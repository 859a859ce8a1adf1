"""Two nodes of different protocols cannot read each other, and both say so by name."""

from __future__ import annotations

from tests.unit.test_links import FACTS, ME, REFUSED_DELAY, A, B, Bench, of, place, sent
from zpd.actions import Action, Refusal
from zpd.messages import Hello, Message, Refused, Welcome
from zpd.session import read_route, route_of
from zpd.sockets import Dial, Hangup
from zpd.wire import PROTOCOL, Envelope, decode, encode, protocol_of

OTHER = PROTOCOL + 1


def foreign(message: Message, source: str, target: str) -> list[bytes]:
    """A message of the next protocol: only its first part can be understood here."""
    _, header, *rest = encode(Envelope(source, 3, target, ME, 1, 0), message)
    return [b"ZPD%d" % OTHER, bytes(header) + b"?", *map(bytes, rest)]


def mismatches(bench: Bench) -> list[tuple[str, str, str, str]]:
    shown = bench.links.statistics(bench.now)["mismatches"]
    return [(x["peer"], x["by"], x["field"], f"{x['mine']} {x['yours']}") for x in shown]


def test_a_dialler_of_another_protocol_is_answered_and_named() -> None:
    bench = Bench()
    bench.start()
    hello = foreign(Hello(OTHER, "prefill", "control", FACTS), B, "me")
    actions = bench.links.mailed(route_of(B, 3, 1), hello, bench.now)
    assert sent(actions) == [Refused("mismatch", "protocol", str(PROTOCOL), str(OTHER))]
    (refusal,) = of(Refusal, actions)
    assert (refusal.reason, refusal.peer, refusal.session) == ("protocol", B, True)
    assert refusal.detail == f"mismatch: protocol is '{PROTOCOL}' at me, '{OTHER}' at {B}"
    assert mismatches(bench) == [(B, "me", "protocol", f"{PROTOCOL} {OTHER}")]
    bench.hello(session=2)
    assert mismatches(bench) == [], "a newer program of that name is welcome"


def test_a_stranger_of_another_protocol_is_not_remembered() -> None:
    bench = Bench()
    hello = foreign(Hello(OTHER, "client", "control"), "x", "me")
    assert sent(bench.links.mailed(route_of("x", 3, 1), hello, bench.now))
    assert mismatches(bench) == []
    actions = bench.links.mailed(b"\x00no route", hello, bench.now)
    assert (sent(actions), [r.reason for r in of(Refusal, actions)]) == ([], ["protocol"])


def test_a_listener_of_another_protocol_is_named_and_dialled_again_slowly() -> None:
    bench = Bench(place(dials=((A, "control", "tcp://a:1"),)))
    bench.start()
    bench.links.connected(1, bench.now)
    answer = foreign(Welcome(OTHER, "coordinator", FACTS), A, "me")
    actions: list[Action] = bench.links.received(1, answer, bench.now)
    assert [r.reason for r in of(Refusal, actions)] == ["mismatch"]
    assert of(Hangup, actions) == [Hangup(1)]
    assert mismatches(bench) == [(A, "me", "protocol", f"{PROTOCOL} {OTHER}")]
    assert not of(Dial, bench.tick(REFUSED_DELAY - 0.01))
    assert of(Dial, bench.tick(0.01))
    bench.open(2)
    assert mismatches(bench) == []


def test_a_foreign_frame_in_an_open_session_ends_nothing() -> None:
    bench = Bench(place(dials=((A, "control", "tcp://a:1"),)))
    bench.start()
    bench.open(1)
    answer = foreign(Welcome(OTHER, "coordinator", FACTS), A, "me")
    assert [r.reason for r in bench.links.received(1, answer, bench.now)] == ["protocol"]
    assert bench.links.is_open(A, "control")


def test_what_the_refused_dialler_sees_of_the_refusal() -> None:
    bench = Bench()
    hello = foreign(Hello(OTHER, "prefill", "control", FACTS), B, "me")
    (answer, _) = bench.links.mailed(route_of(B, 3, 1), hello, bench.now)
    frames = answer.frames  # type: ignore[union-attr]
    assert protocol_of(frames) == PROTOCOL
    assert decode(frames)[0].target == B


def test_routes_are_read_back() -> None:
    assert read_route(route_of("stage-0", 7, 2)) == ("stage-0", 7, 2)
    for wrong in (b"", b"a", b"a#1", b"a#b#1", b"#1#1", b"a\n#1#1", b"a#1#" + b"9" * 19):
        assert read_route(wrong) is None, wrong
