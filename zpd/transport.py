"""IO. Room 4: ZeroMQ sockets; the only import of zmq. Implements ``zpd.sockets.Sockets``.

One ROUTER is the mailbox; each dial is a DEALER with a monitor. The numbers in comments are the
traps in ``docs/transport.md``, each measured with libzmq 4.3.5.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq
import zmq.backend
from zmq.utils.monitor import recv_monitor_message

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
from zpd.wire import MAX_BYTES, MAX_PARTS

BIG = 64 * 1024  # bytes from which a part is shared with libzmq, not copied
HIGH_WATER = 4096  # messages in a queue, where the caller names no number
BACKLOG = 128  # connections that wait to be accepted
HANDSHAKE = 5000  # ms for a ZMTP handshake
MAX_ROUTE = 255  # bytes of a routing id, which is not of the message
NEVER = 24 * 3600 * 1000  # ms; a broken socket is closed at the next poll

# Plain integers: pyzmq's flags cost more to combine than a small part costs to send.
_NOW = int(zmq.NOBLOCK)
_NOW_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS = int(zmq.EVENTS)
_OK = Sent.OK
_IN = int(zmq.POLLIN)
_OUT = int(zmq.POLLOUT)
_put: Callable[..., Any] = zmq.backend.Socket.send  # without the arguments that nobody here gives
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
class _Dialled:
    number: int
    socket: zmq.Socket[bytes]
    monitor: zmq.Socket[bytes]
    news: int  # the file descriptor that says when to read the monitor
    connected: bool = False  # its ZMTP handshake is done
    announced: bool = False  # Connected was told
    broken: str = ""  # why; Closed is told once all that was received is


@dataclass
class _Waker:
    """An eventfd, or a pipe where there is none."""

    read: int = -1
    write: int = -1
    fds: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if hasattr(os, "eventfd"):
            self.read = self.write = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self.fds = [self.read]
        else:
            self.read, self.write = os.pipe()
            os.set_blocking(self.read, False)
            os.set_blocking(self.write, False)
            self.fds = [self.read, self.write]

    def set(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):  # full is as good as set
            os.write(self.write, (1).to_bytes(8, "little"))

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.read, 4096)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.read = self.write = -1


class ZmqSockets:
    """One thread only (trap 10), but for ``wake``. Made after any fork: contexts do not survive."""

    def __init__(self, high_water: int = HIGH_WATER) -> None:
        self._high_water = high_water
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._poller = zmq.Poller()
        self._waker = _Waker()
        self._poller.register(self._waker.read, zmq.POLLIN)
        self._mailbox: zmq.Socket[bytes] | None = None
        self._dialled: dict[int, _Dialled] = {}
        self._sources: dict[zmq.Socket[bytes] | int, _Dialled] = {}  # what tells of each
        self._broken: list[_Dialled] = []
        self._gone: list[bytes] = []  # routes that a send found closed
        self._more = False  # the last poll left something unread
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
        self._mailbox = mailbox
        self._poller.register(mailbox, zmq.POLLIN)
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
        dealer.setsockopt(zmq.RECONNECT_IVL, NEVER)
        # 9. Draft events are not in the wheel; the monitor tells of connections.
        monitor = dealer.get_monitor_socket(_UP | _DOWN)
        news = int(monitor.getsockopt(zmq.FD))
        made = _Dialled(dial.number, dealer, monitor, news)
        self._dialled[dial.number] = self._sources[dealer] = self._sources[news] = made
        self._poller.register(dealer, zmq.POLLIN)
        # Polling a descriptor costs less than a socket. It tells of all that comes after a read
        # that found nothing, as this one does; a monitor is only read, and always to its end.
        self._watch(made, [])
        self._poller.register(news, zmq.POLLIN)
        try:
            dealer.connect(dial.address)
        except zmq.ZMQError as error:
            self._break(made, f"{dial.address}: {error}")

    def hangup(self, number: int) -> None:
        dialled = self._dialled.pop(number, None)
        if dialled is not None:
            for source in (dialled.socket, dialled.news):
                self._poller.unregister(source)
                del self._sources[source]
            if dialled in self._broken:
                self._broken.remove(dialled)
            dialled.socket.disable_monitor()
            dialled.monitor.close(linger=0)
            dialled.socket.close(linger=0)

    def send(self, outgoing: Outgoing) -> Sent:
        if isinstance(outgoing, SendBack):
            if self._mailbox is None:
                return Sent.GONE
            sent = _send(self._mailbox, [outgoing.route, *outgoing.frames])
            if sent is Sent.GONE:
                self._gone.append(outgoing.route)
            return sent
        dialled = self._dialled.get(outgoing.number)
        if dialled is None or dialled.broken or not dialled.connected:
            return Sent.GONE
        return _send(dialled.socket, outgoing.frames)

    def poll(self, timeout: float, limit: int) -> list[SocketEvent]:
        events: list[SocketEvent] = []
        if self._more or self._gone or self._broken:
            timeout = 0.0
        self._more = False
        most, mailbox = limit, self._mailbox
        for source, _ in self._poller.poll(math.ceil(timeout * 1000) if timeout > 0 else 0):
            if mailbox is not None and source is mailbox:
                self._read_mailbox(mailbox, events, most)
            elif source == self._waker.read:
                self._waker.clear()
            elif dialled := self._sources.get(source):
                if source == dialled.news or not dialled.announced:
                    self._watch(dialled, events)
                if source is dialled.socket:
                    self._receive(dialled, events, most)
            most = len(events) + limit  # none may starve another
        if self._gone and not self._more:
            gone, self._gone = self._gone, []
            events += map(Gone, dict.fromkeys(gone))
        for dialled in list(self._broken):
            self._receive(dialled, events, len(events) + limit)
        return events

    def wake(self) -> None:
        self._waker.set()

    def close(self, linger: float) -> None:
        if self._closed:
            return
        self._closed = True
        for number, dialled in list(self._dialled.items()):
            if dialled.connected and not dialled.broken:
                self._poller.unregister(dialled.news)
                dialled.socket.disable_monitor()
                dialled.monitor.close(linger=0)
            else:
                self.hangup(number)
        # 11. Every socket gets a linger: with a dead peer, the end would never come.
        self._context.destroy(linger=int(linger * 1000))
        self._waker.close()

    # ---- one socket ----------------------------------------------------------------------------

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

    def _watch(self, dialled: _Dialled, events: list[SocketEvent]) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                event = recv_monitor_message(dialled.monitor, zmq.NOBLOCK)["event"]
                if event == _UP:
                    dialled.connected = True
                elif event & _DOWN:
                    broke = dialled.connected
                    self._break(dialled, "the connection broke" if broke else "connection refused")
        if dialled.connected and not dialled.announced and not dialled.broken:
            dialled.announced = True
            events.append(Connected(dialled.number))

    def _break(self, dialled: _Dialled, why: str) -> None:
        dialled.broken = why
        if dialled not in self._broken:
            self._broken.append(dialled)

    def _receive(self, dialled: _Dialled, events: list[SocketEvent], limit: int) -> None:
        while len(events) < limit:
            frames = _recv(dialled.socket)
            if frames is None:
                if dialled.broken:
                    events.append(Closed(dialled.number, dialled.broken))
                    self.hangup(dialled.number)
                return
            events.append(Received(dialled.number, frames))
            if not dialled.broken and not _readable(dialled.socket):
                return
            if _is_large(frames):
                break
        self._more = True

    def _read_mailbox(
        self, mailbox: zmq.Socket[bytes], events: list[SocketEvent], limit: int
    ) -> None:
        while len(events) < limit:
            frames = _recv(mailbox)
            if frames is None:
                return
            events.append(Mailed(bytes(frames[0]), frames[1:]))
            if not _readable(mailbox):
                return
            if _is_large(frames):
                break
        self._more = True


def _readable(source: zmq.Socket[bytes]) -> bool:
    """Whether a message waits. Asking costs less than to try in vain."""
    return bool(int(source.getsockopt(_EVENTS)) & _IN)


def _is_large(frames: Sequence[Part]) -> bool:
    """Whether to let the caller be done with a message before the next one is read: its bytes are
    still in the cache then, and its memory is free for the next."""
    return len(frames) > 2 and type(frames[-1]) is memoryview


def _send(to: zmq.Socket[bytes], parts: Sequence[Part]) -> Sent:
    """3. OK means accepted: if the peer is killed, it is lost all the same.

    Only the first part can be refused; libzmq takes all parts of a message or none.
    """
    last = len(parts) - 1
    for i, part in enumerate(parts):
        flags = _NOW_MORE if i < last else _NOW
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
    if not int(to.getsockopt(_EVENTS)) & _OUT:
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


def _recv(source: zmq.Socket[bytes]) -> list[Part] | None:
    """All parts of the next message; None where there is none. One with too many parts or bytes
    comes cut short, but for the one that is too much, so that ``zpd.wire`` refuses it."""
    try:
        frame = source.recv(_NOW, False)
    except zmq.Again:
        return None
    parts: list[Part] = []
    size = 0
    while True:
        length = len(frame)
        if len(parts) <= MAX_PARTS + 1 and size <= MAX_BYTES + MAX_ROUTE:
            parts.append(frame.bytes if length < BIG else frame.buffer)
        if not frame.more:
            return parts
        size += length
        frame = source.recv(_NOW, False)


def _resolved(address: str) -> str:
    """libzmq binds to numbers only; names of hosts are looked up here."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if host.startswith("["):
        return address
    found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    return f"tcp://{found[0][4][0]!s}:{port}"
