"""Pure. Every event that a node may log: its level, its fields, what it means.

``docs/events.md`` is made from this table. A record also carries the fields of ``HEAD``, which no
row may name. Ids in fields: ``att``, ``use`` and ``term`` as in ``zpd.ids``, written as text;
``session`` and ``seq`` as on the wire; ``uid`` is the coordinator's own name for a request. All
times in fields are seconds, all sizes bytes, ranges are half-open token positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from zpd.errors import ZpdBug
from zpd.ids import Attempt, Term, Use

LOG_VERSION = 2  # of this table: a reader looks at it before it trusts a field
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}

HEAD: dict[str, str] = {
    "time": "wall time, ISO 8601, UTC, microseconds",
    "mono": "the process's monotonic clock, seconds",
    "node": "the node that wrote the record",
    "incarnation": "its process life",
    "level": "debug, info, warning or error",
    "event": "the event's name",
}


@dataclass(frozen=True)
class Event:
    """One row. ``room``: where it happens (see the README), or "node" for the node as a whole."""

    name: str
    level: str
    room: str
    fields: Mapping[str, str]  # name -> meaning
    meaning: str

    @cached_property
    def rank(self) -> int:
        return LEVELS[self.level]

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(self.fields)


_IDS = (Attempt, Term, Use)

_PEER = {"peer": "the other node", "peer_incarnation": "its process life; 0 while unknown"}
_LINK = {"peer": "the other node", "link": "control or bulk", "session": "number of the session"}
_REASON = {"reason": "why, one word", "detail": "more of why; may be empty"}
_ATT = {"att": "the attempt"}
_USE = {"use": "the use of a source slot"}
_READER = {"id": "the front door's name for the request", "uid": "the coordinator's",
           "unread": "bytes of its answer that wait, more or less"}  # fmt: skip
_RANGE = {"start": "first position of the chunk", "stop": "its end"}
_OP = _ATT | _USE | {"seq": "number of the op in its term"} | _RANGE

_ROWS = (
    Event(
        "node_started", "info", "node",
        {
            "role": "coordinator, prefill or decode",
            "pid": "of the process",
            "address": "where its mailbox is bound",
            "topology": "name of the topology",
            "file": "the topology file",
            "fingerprint": "of the topology; nodes that talk must agree",
            "log_version": "of this table; it grows where a field changes its meaning",
            "log_level": "the lowest level that is written",
            "clock": "nodes that name the same one share one monotonic clock",
        },
        "The process holds its name and serves its mailbox; its model may still load.",
    ),
    Event("node_ready", "info", "node",
          {"plan": "what decides the bits that it computes; empty where it computes nothing"},
          "Its model is loaded: the node can do its work."),
    Event("node_stopping", "info", "node", {"why": "who or what asked for it"},
          "The node answers everyone who waits and takes no new work."),
    Event("node_stopped", "info", "node", {}, "The last record of a clean end."),
    Event("node_failed", "error", "node", {"error": "what was raised", "where": "file and line"},
          "A bug or a broken model: the process ends with a non-zero code."),
    Event("peer_up", "info", "corridor", _PEER, "A peer answers."),
    Event("peer_down", "warning", "corridor", _PEER | {"reason": "why"},
          "No control session with the peer is alive, or it makes no progress: it is suspect."),
    Event("plan_differs", "info", "corridor",
          _PEER | {"differs": "for each part of the numeric plan that differs: this node's, the "
                   "peer's"},
          "The two nodes may compute other bits from the same numbers. Said once for each process "
          "of the peer; they work together all the same."),
    Event("limit_lowered", "info", "desk",
          {"limit": "max_tokens or max_queue", "value": "the smallest of all nodes'",
           "peer": "whose it is"},
          "A node's file allows less than the coordinator's: that holds for all requests."),
    Event("link_up", "info", "corridor", _LINK, "A session that this node dialled is open."),
    Event("link_down", "warning", "corridor", _LINK | {"reason": "why"},
          "A session that this node dialled ended; what was in flight may be lost."),
    Event("session_refused", "warning", "corridor",
          {"peer": "who dialled or was dialled", "link": "control or bulk", **_REASON},
          "A session was not opened, or was ended by the other side."),
    Event("frame_refused", "warning", "corridor",
          {"peer": "who sent it", "link": "control, bulk or empty", **_REASON},
          "A frame broke the wire's rules or came too late; it was dropped."),
    Event("send_refused", "error", "corridor",
          {"peer": "to whom", "link": "control or bulk", "message": "kind of message", **_REASON},
          "A message could not be sent: no session is open, or its queue is full."),
    Event("ring_opened", "info", "ring", {"term": "the new term", "stages": "their incarnations"},
          "OPEN went around: every link of the ring works."),
    Event("ring_broken", "warning", "ring",
          {"term": "the term that is over", "why": "what broke",
           "outstanding": "ops that get no reply any more"},
          "Nothing of an open term is waited for any more; a new one is opened."),
    Event(
        "request_accepted", "info", "door",
        {
            "uid": "the request",
            "label": "the client's name for it",
            "n_prompt": "tokens of its prompt",
            "max_tokens": "tokens it may be answered with",
        },
        "A request was tokenised and admitted.",
    ),
    Event("request_refused", "info", "door",
          {"uid": "the request", "label": "the client's name for it",
           "outcome": "its one outcome", "detail": "why"},
          "A request was never admitted; nothing was reserved for it."),
    Event("route_chosen", "info", "desk",
          {"uid": "the request", **_ATT, "n_prompt": "tokens of its prompt",
           "route": "remote: the ring prefills it; local: the decode node does",
           "reason": "set (by the file), unmeasured, probe or cheaper; see docs/routing.md",
           "remote": "estimated seconds from grant to first token by the ring; null: not measured",
           "local": "the same by the decode node"},
          "Where a prompt is prefilled was decided. Never said where [decode] routing is remote."),
    Event("routes_differ", "warning", "desk",
          {"stage": "a stage", "decode": "the decode node",
           "differs": "for each part of the numeric plan that differs: the decode node's, the "
           "stage's"},
          "With routing = cost, the bits of an answer may depend on its prompt's route."),
    Event("attempt_reserved", "debug", "desk", {"uid": "the request", **_ATT},
          "RESERVE, or RESERVE_LANE, left for the decode node."),
    Event("attempt_granted", "debug", "desk",
          _ATT | {"use": "the use of a source slot; empty where it needs none",
                  "waited": "in the decode node's queue"},
          "The attempt has a source slot, open for every writer; or, where the decode node "
          "prefills, a lane."),
    Event("op_sent", "debug", "gate",
          _OP | {"last": "the prompt's last chunk", "more": "the next op is of its pack",
                 "outstanding": "ops, with this one; a pack is one, from its last op on",
                 "depth": "of the window"},
          "An op left for the ring."),
    Event("op_replied", "debug", "gate",
          _OP | {"skip": "why it was not computed; empty if it was", "took": "since op_sent",
                 "outstanding": "ops, without this one; a pack is one"},
          "The op's reply came back, in order."),
    Event("op_arrived", "debug", "ring", _OP, "An op is at a stage; it queues there."),
    Event("op_computed", "debug", "ring",
          _OP | {"skip": "why it was not computed; empty if it was",
                 "waited": "before the compute", "computed": "in the compute",
                 "sent": "handing on its KV and what the next stage, or the coordinator, gets"},
          "A stage is done with an op, computed or skipped."),
    Event("op_failed", "warning", "ring", _ATT | _USE | {"why": "what was raised, or refused"},
          "A stage could not compute an op: this use is skipped from here on."),
    Event("kv_transport", "info", "ring",
          {"mode": "tcp or shm", "owner": "the decode node's incarnation", "why": "what decided"},
          "How this stage's KV reaches the decode node's slots, or the decode node shares none."),
    Event("term_opened", "info", "ring", {"term": "the new term"},
          "This stage obeys a new term; everything of older ones is dropped."),
    Event("reply_out_of_order", "error", "gate", {"why": "what came, and what had to come"},
          "A reply was not the oldest op's: nothing of this term is trusted any more."),
    Event("readiness", "info", "door",
          {"ready": "whether the whole path serves", "why": "what is missing; empty if nothing"},
          "The coordinator began, or ceased, to take requests."),
    Event("attempt_released", "info", "way out",
          _ATT | {"reason": "the first reason to end it", "never_sent": "no op of it went out"},
          "The attempt has no more use for its slot."),
    Event(
        "slot_transition", "debug", "store",
        {
            "slot": "number of the source slot",
            "epoch": "its use that the step applied to",
            "step": "the reservation machine's event",
            "user": "whose state it moved; empty for the holder's",
            "before": "joint state",
            "after": "joint state",
            "att": "whose use it is",
            "age": "how long the joint state was what it was before",
        },
        "The reservation machine moved.",
    ),
    Event("kv_landed", "debug", "store",
          _USE | {"writer": "the stage"} | _RANGE | {"nbytes": "of keys and values"},
          "A chunk's KV of one stage is in its slot."),
    Event("kv_refused", "warning", "store",
          _USE | {"writer": "the stage"} | _RANGE | {"reason": "why, one word"},
          "A chunk's KV was dropped before it touched a slot."),
    Event("kv_imported", "debug", "loop",
          _ATT | _USE | {"n_prompt": "tokens of the prompt",
                         "digest": "SHA-256 of the lane's KV [0, n_prompt): layer by layer, K then "
                         "V, each [kv_heads, n_prompt, head_dim]"},
          "What is in the lane after the import, whatever the split of the ring and whatever came "
          "out of a prefix cache. Computed at this level only."),
    Event("prefix_cache", "info", "loop",
          {"mode": "exact: whole chunks that were prefilled; inexact: also KV that decode made, "
                   "which has other bits, so that an answer may depend on earlier requests",
           "nbytes": "room where the lanes are", "host_nbytes": "room in host memory"},
          "The decode node keeps KV of finished requests. Once, behind node_ready."),
    Event("prefix_used", "info", "gate",
          {"uid": "the request", **_ATT, "n_prompt": "tokens of its prompt",
           "cached": "tokens whose KV the decode node had, so that it is not sent",
           "restored": "tokens whose KV every stage had, so that it is not computed",
           "mode": "[decode] prefix_cache"},
          "What the prefix caches spare an attempt; with its first op, where a cache is on."),
    Event("prefix_not_kept", "warning", "ring", {"why": "what was raised"},
          "KV for a prefix cache could not be copied; whoever counts on it fails by name."),
    Event("import_started", "debug", "loop", _ATT | _USE | {"lane": "where to"},
          "All KV of every writer is there; it is copied into a lane."),
    Event("import_ended", "debug", "loop",
          _ATT | _USE | {"lane": "where to", "took": "the copy",
                         "error": "what went wrong; empty if nothing"},
          "The slot is no longer read."),
    Event("lane_changed", "debug", "loop",
          {"lane": "number of the lane", "before": "the attempt that had it; empty: it was free",
           "after": "who has it; empty: it is free"},
          "A lane was taken or is free again."),
    Event("queue_waits", "debug", "desk",
          {"att": "the first of the decode node's queue; empty: nobody waits",
           "what": "what keeps it from its grant: slot, lane, or ring"},
          "Who waits for a grant, or for what, changed."),
    Event("token_sampled", "debug", "loop",
          _ATT | {"lane": "where", "index": "of the token in the answer, from 0",
                  "finish": "why it is the last one; empty if it is not"},
          "A token leaves for the coordinator."),
    Event("local_computed", "debug", "loop",
          _ATT | {"lane": "where to"} | _RANGE | {"took": "with what it waited for the worker"},
          "The decode node prefilled a chunk of a prompt itself."),
    Event("slot_freed", "debug", "store", {"slot": "number of the source slot",
                                           "epoch": "the use that ended"},
          "Holder released and every user quiet: the slot may be granted again."),
    Event("fence_failed", "error", "store",
          {"slot": "number of the source slot", "epoch": "its use", "why": "what the host said"},
          "No fresh memory could be mapped for a slot that is not quiet: it drains on."),
    Event("slot_fenced", "warning", "store",
          {"slot": "number of the source slot", "epoch": "refused from now on",
           "users": "who was not quiet when the drain's budget ended"},
          "A released slot was taken back without the word of its writers."),
    Event("text_sent", "debug", "way out",
          {"uid": "the request", "n_tokens": "tokens that the client was told of, with these"},
          "More of an answer left for the client."),
    Event(
        "request_done", "info", "way out",
        {
            "uid": "the request",
            "att": "its attempt",
            "label": "the client's name for it",
            "route": "who was to prefill it: remote (the ring) or local (the decode node)",
            "outcome": "its one outcome",
            "detail": "why; empty where the outcome says all",
            "n_prompt": "tokens of its prompt",
            "n_tokens": "tokens of its answer",
            "spans": "tokenise, queue, reserve, prefill, transfer, lane (where a prefetched "
            "request had to wait for one), import, first_token, first_text (the first token's "
            "text), decode, last_text (what text is still to make, and the end): "
            "seconds that do not overlap, and that sum to e2e; as far as the request came",
            "ttft": "from its arrival until its first token's text leaves; null without one",
            "e2e": "from its arrival to this record",
            "cached": "prompt tokens whose KV came out of the decode node's prefix cache",
            "restored": "prompt tokens whose KV came out of the stages' prefix caches",
        },
        "The canonical line: one for each admitted request, at its end.",
    ),
    Event("http_listening", "info", "door", {"url": "where"},
          "The front door takes connections; it answers liveness from here on."),
    Event("ask_sent", "debug", "desk",
          {"id": "the front door's name for the request",
           "label": "of the ask, as the coordinator has it"},
          "A front door asked the coordinator; a request for several answers asks for each."),
    Event("ask_accepted", "debug", "desk",
          {"label": "of the ask", "uid": "the coordinator's name for it"},
          "The coordinator took on a front door's ask."),
    Event("answer_grew", "debug", "way out",
          {"uid": "the ask", "n_tokens": "tokens that came, with these"},
          "More of an answer came, for a reader who still waits for it."),
    Event("ask_done", "debug", "way out",
          {"label": "of the ask", "uid": "the coordinator's name for it; empty without one",
           "outcome": "its one outcome: the coordinator's word, or this node's (lost it, stops)",
           "n_prompt": "tokens of its prompt", "n_tokens": "tokens that came"},
          "A front door's ask ended."),
    Event("call_cancelled", "info", "door",
          {"id": "the front door's name for the request", "label": "the client's, X-Request-Id",
           "why": "who gave up: a client that is gone or takes nothing, an operator, a failure"},
          "Nobody waits for a request any more: its asks at the coordinator are cancelled."),
    Event("clock_offset", "info", "corridor",
          _PEER | {"offset": "the peer's monotonic clock minus this node's",
                   "error": "the true offset is at most this far from it"},
          "Estimated from heartbeats: when first known, when it moved, and once a minute."),
    Event("reader_slow", "info", "way out", _READER,
          "A client takes nothing of its answer for a second."),
    Event("reader_reads", "info", "way out", _READER | {"took": "since it last took something"},
          "A slow client took something again, or was given up."),
    Event("node_still", "warning", "node",
          {"what": "loop: the whole process did not run; work: its workers did not move",
           "seconds": "for how long, until now"},
          "This node stood still."),
    Event("noted", "info", "node",
          {"topic": "the actor's own word", "said": "texts by name"},
          "An actor of one's own has something to say."),
    Event("log_continued", "info", "node",
          {"part": "how many files this process has filled", "role": "as in node_started",
           "log_version": "the same", "log_level": "the same", "clock": "the same"},
          "The log goes on in a fresh file; the one before has the name NODE.jsonl.1."),
    Event("log_dropped", "error", "node",
          {"dropped": "records lost since this was last said, for want of room",
           "errors": "writes that failed since then", "detail": "the last error; may be empty"},
          "The log is not complete."),
)  # fmt: skip

EVENTS: dict[str, Event] = {row.name: row for row in _ROWS}


def check(name: str, fields: Mapping[str, object]) -> Event:
    """The row of an event. Raises ZpdBug where the name or the set of fields is not the table's."""
    row = EVENTS.get(name)
    if row is None:
        raise ZpdBug(f"event {name} is not in zpd.events")
    if fields.keys() != row.names:
        odd = sorted(fields.keys() ^ row.names)
        raise ZpdBug(f"event {name}: fields missing or not in zpd.events: {', '.join(odd)}")
    return row


def written(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Ids as text. Whoever logs gives them as they are: most debug events are never written."""
    return {k: str(v) if isinstance(v, _IDS) else v for k, v in fields.items()}
