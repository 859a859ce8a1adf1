"""The real loop: real threads, real sockets on loopback, one actor; and its client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from zpd.actor import Actor, Context, Progress
from zpd.blobs import Blob
from zpd.client import Client, PeerLost
from zpd.errors import RemoteError, UserError, ZpdBug
from zpd.events import check
from zpd.loop import Loop
from zpd.messages import Ask, Cancel, Done, Message, Status, StatusAsk
from zpd.place import Place
from zpd.requests import Sampling
from zpd.topology import Timeouts
from zpd.transport import ZmqSockets

TIMES = Timeouts(heartbeat=0.05, suspect=5.0, handshake=5.0, stop=2.0)
PATIENCE = 30.0  # seconds until a test that waits fails
ASK = Ask("one", "raw", 1, Sampling())


class Echo(Actor):
    """Answers what ``kind`` says; its behaviour is the test's."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.threads: list[str] = []
        self.peer = ""
        self.gate = threading.Event()

    def on_message(self, peer: str, message: Message, blobs: tuple[Blob, ...]) -> None:
        self.peer = peer
        if isinstance(message, Cancel):
            raise RemoteError("unknown_uid", message.uid)
        assert isinstance(message, Ask)
        text = blobs[0].as_text()
        if text == "bug":
            raise ZpdBug("by request")
        if text == "mistake":
            raise UserError("model nothere: no such directory")
        if text == "stop":
            self.context.stop("by request")
        if text == "later":
            self.context.set_timer("later", self.context.now() + 0.01)
        if text == "work":
            self.context.submit(self.work, self.worked)
        if text == "wait":
            self.context.submit(lambda progress: self.gate.wait(PATIENCE), self.worked)
        if text == "echo":
            self.say(message.label)

    def say(self, detail: str) -> None:
        self.context.send(self.peer, Done("one", "u1", "stop", detail, 0, 0))

    def on_timer(self, key: Any) -> None:
        self.say(f"timer {key}")

    def work(self, progress: Progress) -> str:
        progress.bump()
        self.threads.append(threading.current_thread().name)
        return "worked"

    def worked(self, result: Any, error: BaseException | None) -> None:
        self.threads.append(threading.current_thread().name)
        self.say(str(result))

    def on_stop(self, why: str) -> None:
        if self.peer:
            self.say(f"stopped: {why}")


@dataclass
class Log:
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def event(self, name: str, /, **fields: Any) -> None:
        check(name, fields)
        self.events.append((name, fields))

    def names(self) -> list[str]:
        return [name for name, _ in self.events]


class Running:
    """A loop in a thread of its own."""

    def __init__(self, wanted: Callable[[], bool] = lambda: True) -> None:
        self.log = Log()
        self.code: int | None = None
        self.raised: BaseException | None = None
        sockets = ZmqSockets()
        self.address = sockets.bind("tcp://127.0.0.1:*")
        place = Place("node", "coordinator", 7, (), timeouts=TIMES)
        self.loop = Loop(place, Echo, sockets, self.log, wanted=wanted)
        self.actor: Any = self.loop.runtime.actor
        self.thread = threading.Thread(target=self._run, name="loop")
        self.thread.start()

    def _run(self) -> None:
        try:
            self.code = self.loop.run()
        except UserError as error:
            self.raised = error

    def client(self, **timeouts: float) -> Client:
        return Client(self.address, timeouts=Timeouts(**{**vars(TIMES), **timeouts}))

    def join(self) -> None:
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


@pytest.fixture
def running() -> Iterator[Running]:
    made = Running()
    yield made
    made.actor.gate.set()
    made.loop.stop("the test is over")
    made.join()
    assert made.loop.close()


def ask(client: Client, text: str) -> None:
    client.send(ASK, [Blob.text(text)])


def answer(client: Client) -> Message:
    got = client.receive(PATIENCE)
    assert got is not None
    return got[0]


def detail(client: Client) -> str:
    message = answer(client)
    assert isinstance(message, Done)
    return message.detail


def test_a_client_is_answered(running: Running) -> None:
    with running.client() as client:
        ask(client, "echo")
        assert detail(client) == "one"


def test_a_status_names_the_node(running: Running) -> None:
    with running.client() as client:
        client.send(StatusAsk())
        got = client.receive(PATIENCE)
        assert got is not None
        assert got[0] == Status(True, "")
        text = got[1][0].as_text()
    assert '"name": "node"' in text
    assert '"incarnation": 7' in text


def test_timers_and_work_come_back_on_the_loop(running: Running) -> None:
    with running.client() as client:
        ask(client, "later")
        assert detail(client) == "timer later"
        ask(client, "work")
        assert detail(client) == "worked"
    assert running.actor.threads == ["worker-compute", "loop"]


def test_the_loop_answers_while_work_runs(running: Running) -> None:
    with running.client() as client:
        ask(client, "wait")
        ask(client, "echo")
        assert detail(client) == "one"
        running.actor.gate.set()
        assert detail(client) == "True"


def test_what_a_peer_did_wrong_is_counted_and_the_loop_goes_on(running: Running) -> None:
    with running.client() as client:
        client.send(Cancel("nobody"))
        ask(client, "echo")
        assert detail(client) == "one"
    assert running.loop.runtime.refusals == {"unknown_uid": 1}
    assert running.log.names().count("frame_refused") == 1


def test_a_stop_lets_the_last_words_out_and_ends_with_0(running: Running) -> None:
    with running.client() as client:
        ask(client, "echo")
        assert detail(client) == "one"
        running.loop.stop("SIGTERM")
        assert detail(client) == "stopped: SIGTERM"
        with pytest.raises(PeerLost, match="the connection broke"):
            client.receive(PATIENCE)
        with pytest.raises(PeerLost):
            client.send(StatusAsk())
    running.join()
    assert running.code == 0
    assert running.log.names()[-2:] == ["node_stopping", "node_stopped"]


def test_an_actor_may_stop_its_node(running: Running) -> None:
    with running.client() as client:
        ask(client, "stop")
        assert detail(client) == "stopped: by request"
    running.join()
    assert running.code == 0


def test_a_bug_ends_the_node_with_a_traceback_and_1(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    with running.client() as client:
        ask(client, "bug")
        with pytest.raises(PeerLost):
            client.receive(PATIENCE)
    running.join()
    assert running.code == 1
    assert "ZpdBug: by request" in capsys.readouterr().err
    assert running.log.events[-1][1]["error"] == "ZpdBug: by request"


def test_a_users_mistake_found_late_is_raised_without_a_traceback(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    with running.client() as client:
        ask(client, "mistake")
        with pytest.raises(PeerLost):
            client.receive(PATIENCE)
    running.join()
    assert str(running.raised) == "model nothere: no such directory"
    assert "Traceback" not in capsys.readouterr().err


def test_a_node_that_nobody_wants_any_more_stops() -> None:
    running = Running(wanted=lambda: False)
    running.join()
    assert running.code == 0
    assert "parent is gone" in running.log.events[0][1]["why"]
    assert running.loop.close()


def test_a_node_that_nobody_talks_to_goes_on_and_still_looks_for_its_parent() -> None:
    """With no peer and no session nothing is ever due."""
    wanted = iter((True, True, True, False))
    running = Running(wanted=lambda: next(wanted))
    running.join()
    assert running.code == 0
    assert next(wanted, None) is None
    assert running.loop.close()


def test_a_client_without_a_node_is_told_so() -> None:
    probe = ZmqSockets()
    address = probe.bind("tcp://127.0.0.1:*")
    probe.close(0.0)
    with pytest.raises(PeerLost, match="connection refused"), Client(address, timeouts=TIMES):
        pass


def test_a_client_is_not_kept_waiting_by_who_accepts_and_says_nothing() -> None:
    import socket

    quick = Timeouts(heartbeat=0.05, suspect=0.2, handshake=0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(PeerLost, match=r"no answer in 0\.2 s"), Client(address, timeouts=quick):
            pass


def test_a_client_whose_node_falls_silent_is_told_so(running: Running) -> None:
    with running.client(suspect=1.5) as client:
        ask(client, "echo")
        assert detail(client) == "one"
        held = threading.Event()
        running.actor.say = lambda detail: held.wait(PATIENCE)  # the loop itself is stuck
        ask(client, "echo")
        with pytest.raises(PeerLost, match="silent for"):
            client.receive(PATIENCE)
        held.set()


def test_receive_gives_none_when_nothing_comes(running: Running) -> None:
    with running.client() as client:
        assert client.receive(0.01) is None


def test_two_pieces_of_work_keep_their_order(running: Running) -> None:
    order: list[int] = []
    with running.client() as client:
        ask(client, "wait")
        ask(client, "echo")
        detail(client)
        done = threading.Event()
        for n in range(5):
            running.loop.workers.submit(lambda progress, n=n: order.append(n), _ignore, "compute")
        running.loop.workers.submit(lambda progress: done.set(), _ignore, "compute")
        running.actor.gate.set()
        assert done.wait(PATIENCE)
    assert order == [0, 1, 2, 3, 4]


def _ignore(result: Any, error: BaseException | None) -> None:
    pass
