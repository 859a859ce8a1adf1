"""IO. Room 4: ZeroMQ sockets; the only import of zmq. Implements ``zpd.sockets.Sockets``.

One ROUTER is the mailbox; each dial is a DEALER with a monitor. The numbers in comments are the
traps in ``docs/transport.md``, each measured with libzmq 4.3.5.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import zmq
import zmq.backend
from zmq.utils.monitor import recv_monitor_message

from zpd.blobs import MAX_BYTES
from zpd.errors import UserError
from zpd.sockets import (
    Closed,
    Connected,
    Dial,
    Gone,
    Mailed,
    Outgoing,
    Part,
    Received,
    SendBack,
    Sent,
    SocketEvent,
)
from zpd.waker import Waker
from zpd.wire import MAX_PARTS

BIG = 64 * 1024  # bytes from which a part is shared with libzmq, not copied
HIGH_WATER = 4096  # messages in a queue, where the caller names no number
BACKLOG = 128  # connections that wait to be accepted
HANDSHAKE = 5000  # ms for a ZMTP handshake
NEVER = 24 * 3600  # seconds; a broken socket is closed at the next poll

# Plain integers: pyzmq's flags cost more to combine than a small part costs to send.
_NOW = int(zmq.NOBLOCK)
_NOW_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS = zmq.EVENTS  # not an integer: ``_get`` would look it up
_OK = Sent.OK
_IN = int(zmq.POLLIN)
_OUT = int(zmq.POLLOUT)
# Without the arguments that nobody here gives.
_put: Callable[..., Any] = zmq.backend.Socket.send
_get_part: Callable[..., Any] = zmq.backend.Socket.recv
_get: Callable[..., Any] = zmq.backend.Socket.get
_UP = zmq.EVENT_HANDSHAKE_SUCCEEDED
_DOWN = (
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


@dataclass(eq=False)
class _Source:
    """The mailbox, or a dialled socket."""

    number: int
    socket: zmq.Socket[bytes]
    fd: int  # the file descriptor that says when to look at the socket
    monitor: zmq.Socket[bytes] | None = None  # of a dialled one
    news: int = -1  # the file descriptor that says when to read the monitor
    connected: bool = False  # its ZMTP handshake is done
    announced: bool = False  # Connected was told
    broken: str = ""  # why; Closed is told once all that was received is
    left: bool = False  # it is closed


class ZmqSockets:
    """One thread only (trap 10), but for ``wake``. Made after any fork: contexts do not survive."""

    def __init__(self, high_water: int = HIGH_WATER) -> None:
        self._high_water = high_water
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._poller = select.poll()
        self._waker = Waker()
        self._poller.register(self._waker.read, select.POLLIN)
        self._mailbox: _Source | None = None
        self._dialled: dict[int, _Source] = {}
        self._sources: dict[int, _Source] = {}  # by the descriptors that tell of each
        self._used: set[_Source] = set()  # may have something that its descriptor does not tell of
        self._broken: list[_Source] = []
        self._gone: list[bytes] = []  # routes that a send found closed
        self._closed = False

    def bind(self, address: str) -> str:
        mailbox = self._context.socket(zmq.ROUTER)
        self._configure(mailbox, address)
        # 4. Without it, what cannot be routed vanishes without a word.
        mailbox.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # 5. A routing id is used by one session only, so a second connection with the same one is
        # no newcomer of ours: it must not take over the first one's answers.
        mailbox.setsockopt(zmq.ROUTER_HANDOVER, 0)
        mailbox.setsockopt(zmq.BACKLOG, BACKLOG)
        try:
            mailbox.bind(_resolved(address))
        except (zmq.ZMQError, OSError) as error:
            mailbox.close(linger=0)
            why = zmq.strerror(error.errno or 0) if isinstance(error, zmq.ZMQError) else error
            raise UserError(f"address {address}: cannot be bound: {why}") from None
        self._mailbox = _Source(0, mailbox, _fd(mailbox), announced=True)
        self._register(self._mailbox.fd, self._mailbox)
        return mailbox.getsockopt_string(zmq.LAST_ENDPOINT)

    def dial(self, dial: Dial) -> None:
        dealer = self._context.socket(zmq.DEALER)
        self._configure(dealer, dial.address)
        dealer.setsockopt(zmq.ROUTING_ID, dial.route)
        # 2 and 12. A socket connects once: it is closed long before it would try again, and nothing
        # is sent on it before Connected, so what was meant for a dead process cannot reach the
        # next one at its address. IMMEDIATE=1 or RECONNECT_IVL=-1 would say the same in fewer
        # words, but with either libzmq drops what the peer sent last and we have not read yet.
        dealer.setsockopt(zmq.IMMEDIATE, 0)
        dealer.setsockopt(zmq.RECONNECT_IVL, 1000 * NEVER)
        # 9. Draft events are not in the wheel; the monitor tells of connections.
        monitor = dealer.get_monitor_socket(_UP | _DOWN)
        made = _Source(dial.number, dealer, _fd(dealer), monitor, _fd(monitor))
        self._dialled[dial.number] = made
        self._register(made.fd, made)
        # A monitor is only read, and always to its end, so its descriptor tells of all that comes.
        self._watch(made, [])
        self._register(made.news, made)
        try:
            dealer.connect(dial.address)
        except zmq.ZMQError as error:
            self._break(made, f"{dial.address}: {error}")

    def hangup(self, number: int) -> None:
        dialled = self._dialled.pop(number, None)
        if dialled is not None:
            for fd in (dialled.fd, dialled.news):
                self._poller.unregister(fd)
                del self._sources[fd]
            if dialled in self._broken:
                self._broken.remove(dialled)
            dialled.left = True
            self._deafen(dialled)
            dialled.socket.close(linger=0)

    def send(self, outgoing: Outgoing) -> Sent:
        if isinstance(outgoing, SendBack):
            if self._mailbox is None:
                return Sent.GONE
            self._used.add(self._mailbox)
            sent = _send(self._mailbox.socket, [outgoing.route, *outgoing.frames])
            if sent is Sent.GONE:
                self._gone.append(outgoing.route)
            return sent
        dialled = self._dialled.get(outgoing.number)
        if dialled is None or dialled.broken or not dialled.connected:
            return Sent.GONE
        self._used.add(dialled)
        return _send(dialled.socket, outgoing.frames)

    def poll(self, timeout: float, limit: int) -> Iterator[SocketEvent]:
        # 14. A descriptor tells of what comes after a look at its socket that found nothing, but a
        # send may have read those news.
        ready = [s for s in self._used if not s.left and _readable(s.socket)]
        self._used.clear()
        gone, self._gone = self._gone, []
        wait = 0.0 if ready or gone or self._broken else min(max(timeout, 0.0), NEVER)
        changes: list[SocketEvent] = []
        for fd, _ in self._poller.poll(math.ceil(1000 * wait)):
            source = self._sources.get(fd)
            if source is None:
                self._waker.clear()
            elif fd == source.news:
                self._watch(source, changes)
            elif source not in ready:
                ready.append(source)
        for source in ready:
            if not source.announced:  # before what came on it
                self._watch(source, changes)
        yield from changes
        for source in ready:
            yield from self._read(source, limit)
        if self._mailbox in self._used:
            self._gone[:0] = gone  # after all that came from them
        else:
            yield from map(Gone, dict.fromkeys(gone))
        for source in list(self._broken):
            yield from self._read(source, limit)

    def wake(self) -> None:
        self._waker.set()

    def close(self, linger: float) -> None:
        if self._closed:
            return
        self._closed = True
        for number, dialled in list(self._dialled.items()):
            if dialled.connected and not dialled.broken:
                self._deafen(dialled)
            else:
                self.hangup(number)
        # 11. Every socket gets a linger: with a dead peer, the end would never come.
        self._context.destroy(linger=int(linger * 1000))
        self._waker.close()

    # ---- one socket ----------------------------------------------------------------------------

    def _register(self, fd: int, source: _Source) -> None:
        self._sources[fd] = source
        self._poller.register(fd, select.POLLIN)

    def _deafen(self, dialled: _Source) -> None:
        dialled.socket.disable_monitor()
        if dialled.monitor is not None:
            dialled.monitor.close(linger=0)

    def _configure(self, made: zmq.Socket[bytes], address: str) -> None:
        made.setsockopt(zmq.LINGER, 0)  # 11; ``close`` grants more
        # 7. High water counts messages, not bytes, so it has to fit what windows and reservations
        # let a node send; bytes are bounded by those.
        made.setsockopt(zmq.SNDHWM, self._high_water)
        made.setsockopt(zmq.RCVHWM, self._high_water)
        # 1. A larger part ends the connection without an error here; the limit is for one part, so
        # ``_recv`` counts parts and bytes too.
        made.setsockopt(zmq.MAXMSGSIZE, MAX_BYTES)
        # 8 and 13. No ZMTP heartbeats: libzmq's thread answers them whatever the loop does, and its
        # timer aborts the process once a peer resets a connection whose queue here is full. The
        # sessions beat for themselves; the kernel's keepalive clears away dead machines.
        made.setsockopt(zmq.HEARTBEAT_IVL, 0)
        made.setsockopt(zmq.TCP_KEEPALIVE, 1)
        made.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE)
        if address.startswith("tcp://["):
            made.setsockopt(zmq.IPV6, 1)

    def _watch(self, dialled: _Source, events: list[SocketEvent]) -> None:
        with contextlib.suppress(zmq.Again):
            while dialled.monitor is not None:
                event = recv_monitor_message(dialled.monitor, zmq.NOBLOCK)["event"]
                if event == _UP:
                    dialled.connected = True
                elif event & _DOWN:
                    broke = dialled.connected
                    self._break(dialled, "the connection broke" if broke else "connection refused")
        if dialled.connected and not dialled.announced and not dialled.broken:
            dialled.announced = True
            events.append(Connected(dialled.number))

    def _break(self, dialled: _Source, why: str) -> None:
        dialled.broken = why
        if dialled not in self._broken:
            self._broken.append(dialled)

    def _read(self, source: _Source, limit: int) -> Iterator[SocketEvent]:
        """Each message is handled before the next one is read: its bytes are still in the cache
        then, and its memory is free for the next."""
        for _ in range(limit):  # none may starve another
            if source.left:
                return
            of = source.socket
            event: list[SocketEvent] = []
            try:
                if source is self._mailbox:  # the first part is a route there
                    event.append(Mailed(_get_part(of, _NOW, True), _parts(of)))
                else:
                    event.append(Received(source.number, _parts(of)))
            except zmq.Again:
                if source.broken:
                    self.hangup(source.number)
                    yield Closed(source.number, source.broken)
                return
            yield event.pop()  # and nothing here holds it
            if not source.broken and not source.left and not _readable(source.socket):
                self._used.discard(source)
                return
        self._used.add(source)


def _fd(of: zmq.Socket[bytes]) -> int:
    return int(of.getsockopt(zmq.FD))


def _readable(source: zmq.Socket[bytes]) -> bool:
    """Whether a message waits. Asking costs less than to try in vain."""
    return bool(_get(source, _EVENTS) & _IN)


def _send(to: zmq.Socket[bytes], parts: Sequence[Part]) -> Sent:
    """3. OK means accepted: if the peer is killed, it is lost all the same.

    Only the first part can be refused; libzmq takes all parts of a message or none.
    """
    left = len(parts)
    for part in parts:
        left -= 1
        flags = _NOW_MORE if left else _NOW
        # 6. A large part is shared with libzmq until it has left: zpd.actor says that a blob's
        # memory never changes after a send, so no tracker is waited for.
        copied = type(part) is not memoryview or part.nbytes < BIG
        try:
            _put(to, part, flags, copied)
        except zmq.Again:
            sent = _send_again(to, part, flags, copied)
            if sent is not _OK:
                return sent
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                return Sent.GONE
            raise
    return _OK


def _send_again(to: zmq.Socket[bytes], part: Part, flags: int, copied: bool) -> Sent:
    """libzmq looks at its own news only now and then; asking for EVENTS makes it look."""
    if not _get(to, _EVENTS) & _OUT:
        return Sent.FULL
    try:
        _put(to, part, flags, copied)
    except zmq.Again:
        return Sent.FULL
    except zmq.ZMQError as error:
        if error.errno == zmq.EHOSTUNREACH:
            return Sent.GONE
        raise
    return _OK


def _parts(source: zmq.Socket[bytes]) -> list[Part]:
    """All further parts of its message. One with too many parts or bytes comes cut short, but for
    the one that is too much, so that ``zpd.wire`` refuses it. Raises zmq.Again where none is here.
    """
    parts: list[Part] = []
    size = 0
    while True:
        frame = _get_part(source, _NOW, False)
        length = len(frame)
        if len(parts) <= MAX_PARTS and size <= MAX_BYTES:
            parts.append(frame.bytes if length < BIG else frame.buffer)
        if not frame.more:
            return parts
        size += length


def _resolved(address: str) -> str:
    """libzmq binds to numbers only; names of hosts are looked up here."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if host.startswith("["):
        return address
    found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    return f"tcp://{found[0][4][0]!s}:{port}"
