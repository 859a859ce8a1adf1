"""The runtime under a simulated cluster: sessions, suspicion, restarts, and damage to frames."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from typing import Any

import pytest

from zpd.actor import Actor, Progress
from zpd.blobs import Blob
from zpd.errors import RemoteError, ZpdBug
from zpd.ids import Attempt, Ring, Term, Use
from zpd.messages import Ask, Cancel, Close, Done, Ended, Heartbeat, Message, Opened, Skip
from zpd.testing.cluster import Cluster, OutOfTime
from zpd.topology import Model, Node, Timeouts, Topology

TIMES = Timeouts(heartbeat=0.5, suspect=2.0, handshake=1.0, stop=1.0)
TOPOLOGY = Topology(
    name="toy",
    file="toy.toml",
    model=Model("toy", layers=2),
    nodes=(
        Node("c", "coordinator", "tcp://127.0.0.1:7001"),
        Node("p0", "prefill", "tcp://127.0.0.1:7002", layers=(0, 1)),
        Node("p1", "prefill", "tcp://127.0.0.1:7003", layers=(1, 2)),
        Node("d", "decode", "tcp://127.0.0.1:7004", layers=(0, 2)),
    ),
    timeouts=TIMES,
)


class Pinger(Actor):
    """The coordinator counts with the decode node: Ended(n) there, Ended(n) back, and so on."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen: list[Message] = []
        self.said: list[str] = []
        self.numbers: list[int] = []
        self.timers: list[Hashable] = []
        self.blobs: list[Blob] = []

    def ping(self, n: int, peer: str = "d") -> bool:
        return self.context.send(peer, Ended(Attempt(1, n), "ping"))

    def on_message(self, peer: str, message: Message, blobs: tuple[Blob, ...]) -> None:
        self.seen.append(message)
        if isinstance(message, Ask):
            self.blobs.extend(blobs)
            done = Done(message.label, "u1", "stop", "", 1, 1)
            self.context.send(peer, done)
        if isinstance(message, Cancel):
            raise RemoteError("unknown_uid", message.uid)
        if isinstance(message, Close):
            raise ZpdBug("close is never sent here")
        if isinstance(message, Ended):
            self.numbers.append(message.att.n)
            if message.att.n < 50:
                self.ping(message.att.n + 1, peer)

    def on_peer_up(self, peer: str, incarnation: int) -> None:
        self.said.append(f"{peer} up {incarnation}")

    def on_peer_down(self, peer: str, incarnation: int, reason: str) -> None:
        self.said.append(f"{peer} down {incarnation}")

    def on_link_up(self, peer: str, link: str) -> None:
        self.said.append(f"{peer} {link} open")

    def on_link_down(self, peer: str, link: str, reason: str) -> None:
        self.said.append(f"{peer} {link} lost: {reason}")

    def on_inbound_down(self, peer: str, link: str, reason: str) -> None:
        self.said.append(f"from {peer} {link} lost: {reason}")

    def on_timer(self, key: Hashable) -> None:
        self.timers.append(key)

    def on_stop(self, why: str) -> None:
        self.context.send("d", Skip(Use(1, 2, 3, 0)))


def cluster(seed: int = 0, **options: Any) -> Cluster:
    made = Cluster(TOPOLOGY, Pinger, seed=seed, **options)
    made.start()
    return made


def linked(seed: int = 0, **options: Any) -> Cluster:
    made = cluster(seed, **options)
    made.run_until(lambda: all_open(made), limit=5.0)
    return made


def all_open(made: Cluster) -> bool:
    return all(
        made.nodes[n.name].runtime.links.is_open(peer, link)
        for n in TOPOLOGY.nodes
        for peer, link in TOPOLOGY.links(n.name)
    )


def closed_down(made: Cluster, name: str, peer: str) -> Callable[[], bool]:
    said = made.actor(name).said
    return lambda: any(s.startswith(f"{peer} down") for s in said)


@pytest.mark.parametrize("seed", range(10))
def test_every_link_opens_and_each_peer_comes_up_once(seed: int) -> None:
    made = linked(seed)
    said = made.actor("c").said
    assert sorted(s for s in said if " up " in s) == ["d up 1", "p0 up 1", "p1 up 1"]
    assert made.clock.now <= 1000.1, "who started first dials once more"


def test_messages_go_both_ways_in_order() -> None:
    made = linked()
    assert made.actor("c").ping(0)
    made.settle()
    assert made.actor("d").numbers == list(range(0, 51, 2))
    assert made.actor("c").numbers == list(range(1, 51, 2))


def test_the_same_seed_gives_the_same_trace_and_another_seed_another_order() -> None:
    def trace(seed: int) -> list[str]:
        made = linked(seed)
        for peer in ("d", "p0", "p1"):
            made.actor("c").ping(0, peer)
        made.settle()
        return made.trace

    assert trace(3) == trace(3)
    assert trace(3) != trace(4)
    assert sorted(trace(3)) == sorted(trace(4))


@pytest.mark.parametrize("seed", range(10))
def test_a_killed_node_is_noticed_at_once_and_its_next_life_replaces_it(seed: int) -> None:
    made = linked(seed)
    made.kill("d")
    made.settle()
    assert "d down 1" in made.actor("c").said
    assert not made.actor("c").ping(0)
    made.restart("d")
    made.run_until(lambda: all_open(made), limit=5.0)
    assert made.actor("c").said[-1] == "d control open"
    assert "d up 2" in made.actor("c").said
    made.actor("c").ping(0)
    made.settle()
    assert made.actor("d").numbers[0] == 0, "nothing that was sent to the old life came first"


def test_what_was_sent_to_a_dead_process_never_reaches_the_next() -> None:
    made = linked()
    made.hold("c", "d")
    assert made.actor("c").ping(0)
    made.kill("d")
    made.restart("d")
    made.release("c", "d")
    made.run_until(lambda: all_open(made), limit=5.0)
    assert made.actor("d").seen == []


@pytest.mark.parametrize("seed", range(5))
def test_a_frozen_node_is_suspected_within_the_budget_and_comes_back(seed: int) -> None:
    made = linked(seed)
    made.freeze("p1")
    begun = made.clock.now
    made.run_until(closed_down(made, "c", "p1"))
    assert TIMES.suspect - TIMES.heartbeat <= made.clock.now - begun <= TIMES.suspect + 0.001
    made.run_for(3.0)
    made.thaw("p1")
    made.run_until(lambda: all_open(made), limit=10.0)
    assert made.actor("c").said.count("p1 up 1") == 2
    assert made.actor("p1").ping(50, "d"), "the thawed node serves again"


def test_a_busy_node_without_progress_is_down_though_its_sessions_stay() -> None:
    made = linked()
    context = made.actor("p0").context
    results: list[object] = []
    made.hold_work("p0")
    context.submit(lambda progress: 7, lambda result, error: results.append(result))
    made.run_until(closed_down(made, "c", "p0"), limit=2 * TIMES.suspect)
    assert made.status("c")["peers"]["p0"]["why"].startswith("stalled")
    assert all_open(made)
    made.free_work("p0")
    made.run_until(lambda: made.actor("c").said.count("p0 up 1") == 2, limit=1.0)
    assert results == [7]


def test_work_that_bumps_keeps_its_node_up() -> None:
    made = linked()
    node = made.nodes["p0"]
    made.hold_work("p0")
    made.actor("p0").context.submit(lambda progress: None, lambda result, error: None)
    for _ in range(20):
        node.bump()
        made.run_for(TIMES.heartbeat)
    assert not closed_down(made, "c", "p0")()


def test_an_error_in_work_is_the_actors_to_judge() -> None:
    made = linked()
    errors: list[BaseException | None] = []

    def work(progress: Progress) -> None:
        progress.bump()
        raise ValueError("no such layer")

    made.actor("p0").context.submit(work, lambda result, error: errors.append(error))
    made.settle()
    assert isinstance(errors[0], ValueError)


@pytest.mark.parametrize("seed", range(5))
def test_a_cut_link_is_told_to_both_sides_and_redialled_when_healed(seed: int) -> None:
    made = linked(seed)
    made.cut("c", "p0", "bulk")
    made.run_for(5.0)
    assert not made.actor("c").context.send("p0", Opened(Term(1, 1), "c"), bulk=True)
    assert "p0 bulk lost: the connection broke" in made.actor("c").said
    assert "from c bulk lost: the connection broke" in made.actor("p0").said
    assert not closed_down(made, "c", "p0")(), "control is another connection"
    made.heal("c", "p0", "bulk")
    made.run_until(lambda: all_open(made), limit=1.5)


@pytest.mark.parametrize("how", ["drop", "swap"])
def test_a_missing_frame_ends_the_session_on_both_sides_and_no_later_one_is_used(how: str) -> None:
    made = linked()
    made.tamper("c", "d", how, lambda m: m == Opened(Term(1, 1), "c"))
    for n in range(4):
        made.actor("c").context.send("d", Opened(Term(1, n), "c"))
    made.settle()
    assert made.actor("d").seen == [Opened(Term(1, 0), "c")]
    assert made.named("session_refused", "d")[0]["reason"] == "gap"
    assert any(s.startswith("from c control lost") for s in made.actor("d").said)
    assert any(s.startswith("d control lost: refused by d: gap") for s in made.actor("c").said)
    made.run_until(lambda: all_open(made), limit=1.0)


def test_a_duplicate_is_dropped_and_counted() -> None:
    made = linked()
    made.tamper("c", "d", "duplicate", lambda m: isinstance(m, Opened))
    for n in range(3):
        made.actor("c").context.send("d", Opened(Term(1, n), "c"))
    made.settle()
    assert made.actor("d").seen == [Opened(Term(1, n), "c") for n in range(3)]
    assert made.status("d")["refusals"] == {"duplicate": 1}
    assert all_open(made)


@pytest.mark.parametrize("how", ["drop", "duplicate", "swap"])
def test_a_damaged_heartbeat_heals(how: str) -> None:
    made = linked()
    made.tamper("d", "c", how, lambda m: isinstance(m, Heartbeat))
    made.run_for(5.0)
    assert all_open(made)


def test_a_client_asks_and_is_answered_and_knows_when_its_node_dies() -> None:
    made = linked()
    client = made.client()
    answer = client.ask("hello")
    client.ask_status()
    made.run_until(lambda: client.asker.statuses, limit=1.0)
    assert answer.outcome == "stop"
    assert made.actor("c").blobs[0].as_text() == "hello"
    status = client.asker.statuses[0]
    assert (status["name"], status["role"], status["incarnation"]) == ("c", "coordinator", 1)
    assert status["peers"]["d"]["up"] is True
    late = client.ask("again")
    made.hold("client1", "c")
    made.kill("c")
    made.settle()
    assert late.lost == "the connection broke"


def test_a_client_that_goes_away_is_told_to_the_actor() -> None:
    made = linked()
    client = made.client()
    made.run_for(1.0)
    made.kill(client.name)
    made.settle()
    assert "from client1 control lost: the connection broke" in made.actor("c").said
    assert not any(s.startswith("client1 up") for s in made.actor("c").said)


def test_a_remote_error_is_counted_and_the_node_goes_on() -> None:
    made = linked()
    client = made.client()
    client.asker.put(Cancel("nobody"))
    answer = client.ask("hello")
    made.settle()
    assert made.status("c")["refusals"] == {"unknown_uid": 1}
    assert answer.outcome == "stop"


def test_refusals_are_counted_but_not_all_logged() -> None:
    made = linked()
    client = made.client()
    for _ in range(100):
        client.asker.put(Cancel("nobody"))
    made.settle()
    assert made.status("c")["refusals"] == {"unknown_uid": 100}
    assert len(made.named("frame_refused", "c")) == 1
    made.run_for(1.5)
    client.asker.put(Cancel("nobody"))
    made.settle()
    assert made.named("frame_refused", "c")[1]["detail"] == "nobody (99 more since the last record)"


def test_a_bug_in_an_actor_stops_the_test_and_shows_the_seed() -> None:
    made = linked(seed=5)
    made.actor("c").context.send("d", Close(Ring(Term(1, 1), (1, 1)), Use(1, 0, 0, 0)))
    with pytest.raises(ZpdBug, match="never sent") as caught:
        made.settle()
    assert "seed 5" in caught.value.__notes__[0]


def test_timers_fire_in_order_can_move_and_can_be_cancelled() -> None:
    made = linked()
    actor, start = made.actor("c"), made.clock.now
    for key, after in (("late", 3.0), ("soon", 1.0), ("never", 2.0), ("moved", 0.5)):
        actor.context.set_timer(key, start + after)
    actor.context.set_timer("moved", start + 4.0)
    actor.context.cancel_timer("never")
    made.run_for(3.5)
    assert actor.timers == ["soon", "late"]
    made.run_until(lambda: len(actor.timers) == 3)
    assert made.clock.now == start + 4.0


def test_a_stopped_nodes_last_words_still_arrive() -> None:
    made = linked()
    made.stop("c")
    made.settle()
    assert Skip(Use(1, 2, 3, 0)) in made.actor("d").seen
    assert "c down 1" in made.actor("d").said


def test_another_topology_file_is_refused_and_both_sides_say_which_field() -> None:
    made = cluster()
    made.run_until(lambda: all_open(made))
    made.kill("p1")
    made.topology = Topology(**{**vars(TOPOLOGY), "chunk": 7})
    made.restart("p1")
    made.run_for(5.0)
    for name in ("p1", "d"):
        details = [e["detail"] for e in made.named("session_refused", name)]
        assert any("mismatch: chunk is" in d for d in details)
    assert not made.actor("p1").said


def test_a_full_queue_is_an_alarm_and_costs_no_session() -> None:
    made = linked()
    actor = made.actor("c")
    made.hold("c", "d")
    made.network.room = 3
    sent = [actor.context.send("d", Opened(Term(1, n), "c")) for n in range(5)]
    assert sent == [True, True, True, False, False]
    assert [e["message"] for e in made.named("send_refused", "c")] == ["Opened", "Opened"]
    made.release("c", "d")
    made.settle()
    assert actor.context.send("d", Opened(Term(1, 9), "c"))
    made.settle()
    assert made.actor("d").seen == [Opened(Term(1, n), "c") for n in (0, 1, 2, 9)]
    assert made.status("d")["refusals"] == {}
    assert all_open(made)


def test_running_out_of_time_shows_the_cluster() -> None:
    made = linked()
    with pytest.raises(OutOfTime, match=r"seed 0[\s\S]*- c \(running\)"):
        made.run_until(lambda: False, limit=1.0)


@pytest.mark.parametrize("seed", range(20))
def test_after_any_storm_of_faults_every_link_opens_again(seed: int) -> None:
    made = linked(seed)
    dice = random.Random(seed)
    names = [n.name for n in TOPOLOGY.nodes]
    for _ in range(15):
        name = dice.choice(names)
        peer, link = dice.choice(TOPOLOGY.links(name))
        fault = dice.randrange(5)
        if fault == 0:
            made.restart(name)
        elif fault == 1:
            made.freeze(name)
        elif fault == 2:
            made.cut(name, peer, link)
        elif fault == 3:
            made.tamper(name, peer, dice.choice(["drop", "duplicate", "swap"]), lambda m: True)
        made.run_for(dice.choice([0.0, 0.3, 2.5]))
        if fault == 1:
            made.thaw(name)
        if fault == 2:
            made.heal(name, peer, link)
    made.run_until(lambda: all_open(made), limit=15.0)
    made.run_for(5.0)
    assert all_open(made)
    for name in names:
        peers = made.status(name)["peers"]
        assert all(p["up"] for p in peers.values()), peers
