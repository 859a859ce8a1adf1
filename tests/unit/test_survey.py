"""``zpd status``: what is made of the nodes' answers, and of their silence."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sim.world import topology
from tools.status import as_json, holds, lines
from tools.survey import Answer, Found, State, judge, path_ready

TOPOLOGY = topology()
WALL = 1_000_000.0
NAMES = [n.name for n in TOPOLOGY.nodes]


def up(name: str, **status: Any) -> Answer:
    return Answer("", True, "", {"name": name, "seconds": 100.0, **status})


def word(up: bool, seconds: float, why: str = "", incarnation: int = 7) -> dict[str, Any]:
    return {"up": up, "seconds": seconds, "why": why, "incarnation": incarnation}


def found(**answers: Answer) -> dict[str, Found]:
    said = {name: answers.get(name.replace("-", "_"), up(name)) for name in NAMES}
    return {f.node.name: f for f in judge(TOPOLOGY, said, WALL)}


def test_all_that_answer_are_as_they_say_since_they_began() -> None:
    all_up = found(prefill_0=Answer("", False, "loading the model", {"seconds": 2.0}))
    assert (all_up["decode"].state, all_up["decode"].since) == (State.READY, WALL - 100)
    assert all_up["prefill-0"].state is State.WAITING
    assert (all_up["prefill-0"].why, all_up["prefill-0"].since) == ("loading the model", WALL - 2)
    assert path_ready(TOPOLOGY, list(all_up.values())) == (True, "")


def test_one_that_does_not_answer_is_down_since_and_why_its_peers_say_so() -> None:
    lost = {"prefill-1": word(False, 30.0, "silent for 5.0 s")}
    down = found(
        coordinator=Answer("", False, "prefill-1 is down", {"seconds": 100.0, "peers": lost}),
        prefill_1=Answer("no answer in 3 s"),
    )
    gone = down["prefill-1"]
    assert (gone.state, gone.since) == (State.DOWN, WALL - 30)
    assert gone.why == "no answer in 3 s; coordinator lost it: silent for 5.0 s"
    ready, why = path_ready(TOPOLOGY, list(down.values()))
    assert (ready, why) == (False, "coordinator is waiting: prefill-1 is down")


def test_without_the_coordinator_another_peers_word_counts() -> None:
    down = found(
        coordinator=Answer("connection refused"),
        decode=up("decode", peers={"coordinator": word(False, 4.0, "the connection broke")}),
    )
    assert down["coordinator"].since == WALL - 4
    assert down["coordinator"].why.endswith("decode lost it: the connection broke")
    ready, why = path_ready(TOPOLOGY, list(down.values()))
    assert not ready
    assert why.startswith("coordinator is down: connection refused")


def test_one_that_nobody_ever_met_is_down_since_nobody_knows() -> None:
    never = {"decode": word(False, 90.0, "never heard", incarnation=0)}
    down = found(coordinator=up("coordinator", peers=never), decode=Answer("connection refused"))
    assert (down["decode"].since, down["decode"].why) == (None, "connection refused")


def test_one_that_answers_while_the_coordinator_lost_it_is_suspect() -> None:
    stalled = {"decode": word(False, 6.0, "stalled: busy without progress for 5.0 s")}
    seen = found(coordinator=up("coordinator", peers=stalled))["decode"]
    assert (seen.state, seen.since) == (State.SUSPECT, WALL - 6)
    assert "stalled" in seen.why


def test_json_has_every_node_and_its_whole_status() -> None:
    everything = found(decode=Answer("no answer in 3 s"))
    said = as_json(TOPOLOGY, list(everything.values()), False, "why")
    assert (said["topology"], said["ready"], said["why"]) == ("sim", False, "why")
    nodes = {n["name"]: n for n in said["nodes"]}
    assert nodes["decode"]["up"] is False
    assert nodes["decode"]["status"] is None
    assert nodes["coordinator"]["status"]["seconds"] == 100.0


@pytest.mark.parametrize(
    ("actor", "said"),
    [
        ({"slots": {"free": 1, "draining": 2}}, "slots 1 free, 2 draining"),
        ({"lanes": ["1.2", None, None]}, "lanes 1 of 3 busy"),
        (
            {"window": {"outstanding": 3, "depth": 8, "bytes": 64, "peak": 4}},
            "window 3 of 8 ops, 64 bytes",
        ),
        ({"requests": [{"phase": "decode"}, {"phase": "decode"}]}, "requests 2 decode"),
        ({"requests": []}, "requests 0"),
        ({"ring": {"state": "open", "term": "1.2", "why": ""}}, "ring open 1.2"),
        ({"queue": 4, "down": {}}, "queue 4"),
        ({"said": {"a": "ready"}}, "said a=ready"),
    ],
)
def test_what_a_node_holds(actor: dict[str, Any], said: str) -> None:
    assert ", ".join(holds({"actor": actor})) == said


def test_sessions_refusals_and_mismatches_have_lines_of_their_own() -> None:
    link = {"peer": "coordinator", "link": "control", "number": 4}
    seen = found(
        decode=up(
            "decode",
            links=[{**link, "state": "open"}, {**link, "link": "bulk", "state": "waiting"}],
            refusals={"duplicate": 2},
            mismatches=[
                {"peer": "prefill-0", "link": "control", "by": "decode", "field": "chunk",
                 "mine": "4", "yours": "8", "seconds": 1.0},
            ],
        )
    )  # fmt: skip
    assert [line for line in lines(list(seen.values())) if line.startswith("decode ")] == [
        "decode sessions: coordinator control 4, coordinator bulk waiting",
        "decode refused: 2 duplicate",
        "decode mismatch with prefill-0 (control, refused by decode): chunk is '4' here, '8' there",
    ]
