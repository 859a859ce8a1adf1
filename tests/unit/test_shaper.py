"""The link shaper: bytes arrive whole and in order, not before their time, or not at all."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tools.ports import free_ports
from zpd.testing.shaper import Leg, Shape, Shaper

PATIENCE = 20.0


@pytest.fixture
def echo() -> Iterator[str]:
    """A server that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)

        def serve(s: socket.socket) -> None:
            with s:
                try:
                    while data := s.recv(65536):
                        s.sendall(data)
                except OSError:
                    pass

        def accept() -> None:
            while True:
                try:
                    s, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(s,), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    thread.join(PATIENCE)


PLAIN = Shape()


def leg(target: str, shape: Shape = PLAIN) -> Leg:
    return Leg(f"tcp://127.0.0.1:{free_ports(1)[0]}", target, shape)


def dial(shaper: Shaper, number: int = 0) -> socket.socket:
    host, port = shaper.legs[number].listen.removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE)


def get(s: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = s.recv(65536)
        if not piece:
            break
        data += piece
    return data


SHAPES = [
    Shape(),
    Shape(delay=0.01),
    Shape(delay=0.005, jitter=0.02, seed=3),
    Shape(bandwidth=4e6),
    Shape(delay=0.002, jitter=0.002, bandwidth=8e6),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bytes_come_whole_and_in_order_and_never_early(echo: str, shape: Shape) -> None:
    sent = bytes(range(256)) * 1200
    with Shaper([leg(echo, shape)]) as shaper, dial(shaper) as s:
        began = time.monotonic()
        s.sendall(sent)
        assert get(s, len(sent)) == sent
        took = time.monotonic() - began
    least = 2 * shape.delay
    if shape.bandwidth:
        least += len(sent) / shape.bandwidth
    assert took >= least


def test_many_connections_at_once(echo: str) -> None:
    with Shaper([leg(echo), leg(echo, Shape(delay=0.01))]) as shaper:
        dialled = [dial(shaper, n % 2) for n in range(8)]
        for n, s in enumerate(dialled):
            s.sendall(b"%d" % n)
        assert [get(s, 1) for s in dialled] == [b"%d" % n for n in range(8)]
        for s in dialled:
            s.close()


def test_the_end_of_one_direction_comes_last(echo: str) -> None:
    with Shaper([leg(echo, Shape(delay=0.02))]) as shaper, dial(shaper) as s:
        s.sendall(b"last words")
        s.shutdown(socket.SHUT_WR)
        assert get(s, 100) == b"last words"


def test_a_cut_ends_what_stands_and_what_comes_until_it_heals(echo: str) -> None:
    with Shaper([leg(echo), leg(echo)]) as shaper, dial(shaper) as s, dial(shaper, 1) as other:
        s.sendall(b"a")
        other.sendall(b"o")
        assert (get(s, 1), get(other, 1)) == (b"a", b"o")
        shaper.cut(0)
        assert over(s)
        with dial(shaper) as during:
            assert over(during)
        other.sendall(b"p")
        assert get(other, 1) == b"p", "another leg stands"
        shaper.heal(0)
        with dial(shaper) as after:
            after.sendall(b"b")
            assert get(after, 1) == b"b"


def over(s: socket.socket) -> bool:
    try:
        return s.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("ways", [(), ("forth",), ("back",)])
def test_what_was_frozen_comes_later(echo: str, ways: tuple[str, ...]) -> None:
    with Shaper([leg(echo)]) as shaper, dial(shaper) as s:
        s.sendall(b"a")
        assert get(s, 1) == b"a"
        shaper.freeze(0, *ways)
        s.sendall(b"b")
        s.settimeout(0.3)
        with pytest.raises(TimeoutError):
            s.recv(1)
        s.settimeout(PATIENCE)
        shaper.thaw(0)
        assert get(s, 1) == b"b"


def test_a_port_that_is_taken_is_an_error(echo: str) -> None:
    with pytest.raises(OSError, match="in use"):
        Shaper([Leg(echo, echo)]).start()


def test_a_target_that_is_not_there_ends_the_connection() -> None:
    nobody = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    with Shaper([leg(nobody)]) as shaper, dial(shaper) as s:
        assert over(s)
