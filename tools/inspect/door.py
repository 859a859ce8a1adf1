"""A front door's rules: each ask has one name and one end, and nothing comes after it; and what the
door says of an end is what the coordinator says of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tools.inspect.records import Record, edges, named
from tools.inspect.rules import Broken, Rules, Where
from tools.inspect.run import Run, Source
from zpd.errors import Outcome
from zpd.events import LOG_VERSION

# Of these the door itself may have said that an ask ended so; the coordinator then knows better.
OWN = (Outcome.COORDINATOR_LOST, Outcome.SHUTTING_DOWN)


@dataclass(eq=False)
class Asked:
    where: Where
    id: str
    uid: str = ""
    told: int = 0
    cancelled: bool = False


class DoorRules(Rules):
    def forget(self) -> None:
        self.asks: dict[str, Asked] = {}  # label ->
        self.uids: dict[str, Asked] = {}
        self.calls: dict[str, set[Asked]] = {}  # the door's name for a request -> its asks

    def on_ask_sent(self, r: Record) -> None:
        if r.label in self.asks:
            raise Broken("one outcome", f"ask {r.label} was sent twice")
        asked = self.asks[r.label] = Asked(self.here(), r.id)
        self.calls.setdefault(r.id, set()).add(asked)

    def on_ask_accepted(self, r: Record) -> None:
        asked = self.asks.get(r.label)
        if asked is None:
            self._unknown(f"ask {r.label} is accepted, but none that waits has this name")
            return
        if asked.uid or r.uid in self.uids:
            raise Broken("one outcome", f"ask {r.label} or request {r.uid} was accepted twice")
        asked.uid = r.uid
        self.uids[r.uid] = asked

    def on_answer_grew(self, r: Record) -> None:
        asked = self.uids.get(r.uid)
        if asked is None:
            self._unknown(f"text of request {r.uid}, which is over", "nothing after the end")
            return
        if asked.cancelled:
            raise Broken("nothing after the end", f"text of {r.uid}, for which nobody waits")
        if r.n_tokens < asked.told:
            raise Broken("tokens", f"{r.n_tokens} tokens came, {asked.told} before")
        asked.told = r.n_tokens

    def on_ask_done(self, r: Record) -> None:
        asked = self.asks.pop(r.label, None)
        if asked is None:
            self._unknown(f"ask {r.label} is not one that waits for its end")
            return
        self.uids.pop(asked.uid, None)
        self.calls[asked.id].discard(asked)
        if not self.calls[asked.id]:
            del self.calls[asked.id]
        if asked.uid not in ("", r.uid):
            raise Broken("one outcome", f"ask {r.label} was {asked.uid}, and ends as {r.uid}")
        if not asked.cancelled and asked.told != r.n_tokens:
            raise Broken("tokens", f"{r.n_tokens} tokens in all, but {asked.told} were told")

    def on_call_cancelled(self, r: Record) -> None:
        asks = [asked for asked in self.calls.get(r.id, ()) if not asked.cancelled]
        for asked in asks:
            asked.cancelled = True
        if not asks:
            self._unknown(f"call {r.id} is cancelled, but asks nothing")

    def on_node_stopped(self, r: Record) -> None:
        for label, asked in self.asks.items():
            self.news = True
            text = f"ask {label} has no outcome, and its node stopped"
            self.earlier.append(Broken("one outcome", text, asked.where))

    def _unknown(self, why: str, rule: str = "one outcome") -> None:
        """Below level debug, and where records are missing, it may be one that is not in the
        log."""
        if self.whole and self.debug:
            raise Broken(rule, why)


def disagreements(run: Run) -> Iterator[tuple[Source, Broken]]:
    """Ends that a front door and the coordinator logged, and not as the same. An end that the
    coordinator's log does not have counts only where that log lost nothing."""
    coordinator = run.coordinator
    if coordinator is None or coordinator.version not in (0, LOG_VERSION):
        return
    mine: dict[str, tuple[Source, str, str, int, int, Where]] = {}
    for source in run.of_role("http"):
        if source.version not in (0, LOG_VERSION):
            continue
        for where, r in _named(source, "ask_done"):
            if r.uid and r.outcome not in OWN:
                mine[r.uid] = (source, r.label, r.outcome, r.n_prompt, r.n_tokens, where)
    if not mine:
        return
    for at, r in _named(coordinator, "request_done", "request_refused"):
        if r.uid not in mine:
            continue
        source, label, outcome, n_prompt, n_tokens, where = mine.pop(r.uid)
        found: dict[str, tuple[object, object]] = {
            "label": (label, r.label), "outcome": (outcome, r.outcome),
        }  # fmt: skip
        if r.event == "request_done":
            found |= {"n_prompt": (n_prompt, r.n_prompt), "n_tokens": (n_tokens, r.n_tokens)}
        if odd := [f"{k} {a}, not {b}" for k, (a, b) in found.items() if a != b]:
            text = f"request {r.uid} ended with {'; '.join(odd)} ({at[0].name}:{at[1]})"
            yield source, Broken("same end", text, where)
    if _whole(coordinator):
        for uid, (source, *_, where) in mine.items():
            text = f"request {uid} ended, but the coordinator's log has no end of it"
            yield source, Broken("same end", text, where)


def _named(source: Source, *events: str) -> Iterator[tuple[Where, Record]]:
    for path in source.paths:
        for record in named(path, *events):
            yield (path, int(record.at.rpartition(":")[2])), record


def _whole(source: Source) -> bool:
    """Whether all its lives are in the log from the first to the last record. Its blocks were
    read."""
    first = next(edges(source.paths[0]), None)
    balance = 0
    for _, record in _named(source, "node_started", "node_stopped", "log_dropped"):
        if record.event == "log_dropped":
            return False
        balance += 1 if record.event == "node_started" else -1
    torn = any(t.count for t in source.torn.values())
    return first is not None and first.event == "node_started" and balance == 0 and not torn
