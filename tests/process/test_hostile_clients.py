"""Clients that speak the protocol and mean no good: bursts, nonsense, and one that never reads.
Each question ends once by name, the node lives, and the next answer is exact."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from tests.process.conftest import Toy
from tests.process.faults import records
from tests.process.harness import LIMIT, own_home, started, wait_until, write_config
from tests.process.users import User, until_status
from zpd.blobs import Blob
from zpd.client import Client
from zpd.errors import Outcome
from zpd.messages import Accepted, Ask, Delta, Done, Heartbeat, Hello, StatusAsk
from zpd.requests import Sampling
from zpd.session import route_of
from zpd.wire import PROTOCOL, Envelope, encode

GREEDY = Sampling()


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toy]:
    with own_home(tmp_path_factory.mktemp("clients")) as directory:
        config = write_config(directory, sections={"queue": {"max": 5000}})
        with started(config, directory / "run") as running:
            yield Toy(config, running)


def exact(toy: Toy) -> None:
    """The same processes answer, and rightly."""
    assert toy.running.poll() == ()
    user = User(toy.running.topology)
    answer = user.ask([5, 6, 7], 6)
    wait_until(lambda: answer.over, "the next answer")
    user.close()
    answer.right()


def ends(client: Client, count: int) -> Counter[str]:
    """Read until ``count`` questions ended; each did so once."""
    outcomes: dict[str, str] = {}
    while len(outcomes) < count:
        got = client.receive(LIMIT)
        assert got is not None, f"{len(outcomes)} of {count} ended"
        if isinstance(got[0], Done):
            assert got[0].label not in outcomes
            outcomes[got[0].label] = got[0].outcome
        else:
            assert isinstance(got[0], Accepted | Delta)
    assert client.receive(0.0) is None
    return Counter(outcomes.values())


def test_a_burst_of_questions_is_refused_not_piled_up(toy: Toy) -> None:
    """More than a worker's queue holds. How many find the door full depends on who is faster;
    tests/sim/test_serving.py stops the door worker and counts them."""
    topology = toy.running.topology
    text = Blob.text(json.dumps([1] * 20_000))
    with Client(topology.coordinator.address, timeouts=topology.timeouts) as client:
        for n in range(1500):
            client.send(Ask(f"q{n}", "ids", 4, GREEDY), (text,))
        outcomes = ends(client, 1500)
    assert outcomes[Outcome.PROMPT_TOO_LONG] > 0
    assert outcomes.keys() <= {Outcome.QUEUE_FULL, Outcome.PROMPT_TOO_LONG}
    exact(toy)


def nonsense(pick: random.Random) -> tuple[Ask, Blob]:
    texts: list[Any] = [
        "", "[", "[[" * 5000, "[1e999]", "[1.0]", "[true]", "[-1]", "[256]", f"[{2**70}]", "{}",
        "9" * 5000, '"x"', "null", '[{"role": "user"}]', '[{"role": 7, "content": []}]',
        '[{"role": "user", "content": {"a": "b"}}]', "\0" * 300, "\ud7ff\U0010ffff" * 50,
        b"\xff\xfe", b"[1, \x80]",
    ]  # fmt: skip
    text = pick.choice(texts)
    data = text if isinstance(text, bytes) else text.encode()
    sampling = Sampling(
        temperature=pick.choice((0.0, 1e-300, 1.0, 1e300)),
        top_k=pick.choice((0, 1, 10**6)),
        top_p=pick.choice((1.0, 1e-300, 0.5, 7.0)),
        min_p=pick.choice((0.0, 1.0, 2.0)),
        repetition_penalty=pick.choice((1.0, 1e-300, 1e300)),
        seed=pick.choice((0, 2**63 - 1)),
    )
    message = Ask(
        f"q{pick.randrange(2**60)}",
        pick.choice(("raw", "chat", "ids", "", "pickle")),
        pick.choice((0, 1, 3, 512, 2**63 - 1)),
        sampling if pick.random() < 0.7 else GREEDY,
        pick.choice(((), ("",), ("x",) * 17, ("\0",))),
        pick.choice((0.0, 1e-9, -1.0, 1e300)),
    )
    return message, Blob("uint8", (len(data),), memoryview(data))


@pytest.mark.parametrize("count", [200, pytest.param(3000, marks=pytest.mark.full)])
def test_nonsense_ends_by_name(toy: Toy, count: int) -> None:
    pick, topology = random.Random(count), toy.running.topology
    total: Counter[str] = Counter()
    with Client(topology.coordinator.address, timeouts=topology.timeouts) as client:
        for _ in range(count // 50):
            for _ in range(50):
                message, text = nonsense(pick)
                client.send(message, (text,))
            total += ends(client, 50)
    assert total.keys() <= {*Outcome}
    assert total[Outcome.BAD_REQUEST] > count / 2
    exact(toy)


@pytest.mark.parametrize("name", [pytest.param("coordinator", marks=pytest.mark.full), "decode"])
def test_a_client_that_never_reads_is_given_up(toy: Toy, name: str) -> None:
    """It lives, so that silence does not end it; its answers would pile up for ever."""
    topology = toy.running.topology
    with zmq.Context() as context, context.socket(zmq.DEALER) as deaf:
        for option, value in (
            (zmq.LINGER, 0), (zmq.RCVHWM, 1), (zmq.RCVBUF, 4096), (zmq.SNDTIMEO, int(LIMIT * 1000)),
        ):  # fmt: skip
            deaf.setsockopt(option, value)
        deaf.setsockopt(zmq.ROUTING_ID, route_of("deaf", 1, 1))
        deaf.connect(topology.node(name).address)
        deaf.send_multipart(
            encode(Envelope("deaf", 1, "", 0, 1, 0), Hello(PROTOCOL, "client", "control"))
        )
        life = until_status(
            topology, name, lambda s: any(x["peer"] == "deaf" for x in s["inbound"]), "it is in"
        )["incarnation"]
        for seq in range(1, 100_000):
            message = Heartbeat(0, False) if seq % 50 == 0 else StatusAsk()
            deaf.send_multipart(encode(Envelope("deaf", 1, name, life, 1, seq), message))
            if seq % 1000 == 0:
                found = until_status(topology, name, lambda s: True, "any status")
                if all(x["peer"] != "deaf" for x in found["inbound"]):
                    break
    assert found["refusals"]["full"] == 1
    assert found["pid"] == toy.running.pids[name]
    log: list[dict[str, Any]] = []

    def logged() -> bool:
        log[:] = records(toy.running.run_dir, name, killed=True)  # it lives: the last may be half
        return any(r.get("reason") == "full" for r in log)

    wait_until(logged, "that it is given up is logged, and so all before it")
    assert Counter(r["event"] for r in log)["send_refused"] == 0
    exact(toy)
