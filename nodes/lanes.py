"""Room 7. The lanes' compute: imports, prefill on this node, first tokens, decode steps, and what a
prefix cache keeps. All of it runs on the compute worker, one piece after the other.

``zpd.owner`` decides who has which lane; this does the work, and tells the owner when it is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nodes.engine.base import DecodeEngine
from nodes.sampling import Sampler
from zpd.actor import Context, Progress
from zpd.blobs import Blob
from zpd.errors import Outcome
from zpd.ids import Attempt
from zpd.lanecache import LaneCache
from zpd.messages import Ended, Reserve, ReserveLane, Token
from zpd.owner import Owner
from zpd.rulings import Action, KeepLane, StartImport
from zpd.topology import Topology


@dataclass
class Answer:
    """A live attempt's own state, apart from its slot's."""

    request: Reserve | ReserveLane
    prompt: list[int]
    sampler: Sampler
    filled: int = 0  # prompt tokens [0, filled) were prefilled here
    granted: float = 0.0
    hidden: Blob | None = None
    whole: float | None = None  # when all KV had landed, if the import did not start at once
    lane: int = -1
    stepping: bool = False  # the first token is out: the lane takes part in decode steps
    n_tokens: int = 0
    made: list[int] = field(default_factory=list)  # the answer so far, where a cache may want it
    marks: dict[str, float] = field(default_factory=dict)


class Lanes:
    """``do``: how the decode node carries out what the owner decides."""

    def __init__(
        self, context: Context, topology: Topology, owner: Owner, engine: DecodeEngine,
        cache: LaneCache | None, do: Callable[[list[Action]], None],
    ) -> None:  # fmt: skip
        self._context = context
        self._topology = topology
        self._owner = owner
        self.engine = engine
        self._cache = cache
        self._do = do
        self._coordinator = topology.coordinator.name
        self.answers: dict[Attempt, Answer] = {}  # the live ones
        self._stepping = False  # a step is under way
        self.prefilling = False  # a chunk is
        self.prefilled = 0  # prompts that were prefilled here
        self.steps = 0

    def forget(self, before: int) -> None:
        """No one is there to hear the answers of coordinators up to ``before``."""
        for att in [a for a in self.answers if a.incarnation <= before]:
            del self.answers[att]

    def start_import(self, start: StartImport) -> None:
        answer = self.answers[start.att]
        answer.lane = start.lane
        hidden = answer.hidden
        assert hidden is not None  # the owner starts an import only when all is there
        started = self._context.now()
        if answer.whole is None:
            answer.marks["kv"] = started - answer.granted
        else:
            answer.marks["kv"] = answer.whole - answer.granted
            answer.marks["lane"] = started - answer.granted

        def copy(progress: Progress) -> str:
            slot, lane, prompt = start.use.slot, start.lane, answer.prompt
            if start.prefix:
                self.engine.restore(lane, start.prefix, progress)
            first = len(start.prefix) * self._topology.chunk
            self.engine.import_slot(slot, lane, prompt, answer.sampler, progress, first)
            if self._topology.log_level != "debug":
                return ""
            return self.engine.kv_digest(lane, len(prompt), progress)

        def copied(digest: str, error: BaseException | None) -> None:
            self._imported(start, answer, started, digest, error)

        def sampled(token: int, error: BaseException | None) -> None:
            self._sampled(start.att, answer, token, error)

        # Both at once, so that no step of other lanes comes between them. Where the copy fails, its
        # attempt is over by the time that a token of it is sampled, and nobody hears of it.
        self._context.submit(copy, copied)
        self._context.submit(lambda p: self.engine.first(start.lane, hidden, p), sampled)
        self._context.event("import_started", att=start.att, use=start.use, lane=start.lane)

    def _imported(
        self,
        start: StartImport,
        answer: Answer,
        started: float,
        digest: str,
        error: BaseException | None,
    ) -> None:
        now = self._context.now()
        why = "" if error is None else f"import: {type(error).__name__}: {error}"
        att, use = str(start.att), str(start.use)
        if digest:
            self._context.event(
                "kv_imported", att=att, use=use, n_prompt=len(answer.prompt), digest=digest
            )
        self._context.event(
            "import_ended", att=att, use=use, lane=start.lane, took=now - started, error=why
        )
        answer.marks["import_end"] = now - answer.granted
        self._do(self._owner.import_ended(now, start.use.slot, why))

    def _sampled(
        self, att: Attempt, answer: Answer, token: int, error: BaseException | None
    ) -> None:
        if self.answers.get(att) is not answer:
            return  # it ended while it was imported
        if error is not None:
            self._compute_failed(att, "first token", error)
            return
        answer.stepping = True
        answer.marks["sampled"] = self._context.now() - answer.granted
        self._token(att, answer, token)
        self._step()

    def prefill(self) -> None:
        """The next chunk of the oldest prompt that is prefilled here, if none is under way. Each is
        a piece of work of its own, so that other lanes' steps come in between."""
        if self.prefilling:
            return
        for att, answer in self.answers.items():
            mine = isinstance(answer.request, ReserveLane) and answer.lane >= 0
            if mine and answer.filled < len(answer.prompt):
                self._prefill_chunk(att, answer)
                return

    def _prefill_chunk(self, att: Attempt, answer: Answer) -> None:
        lane, prompt, start = answer.lane, answer.prompt, answer.filled
        stop, sampler = min(start + self._topology.chunk, len(prompt)), answer.sampler
        began = self._context.now()
        answer.marks.setdefault("turn", began - answer.granted)
        self.prefilling = True

        def done(hidden: Blob, error: BaseException | None) -> None:
            self.prefilling = False
            if self.answers.get(att) is answer:
                now = self._context.now()
                if error is not None:
                    self._compute_failed(att, "local prefill", error)
                else:
                    self._context.event(
                        "local_computed", att=att, lane=lane, start=start, stop=stop,
                        took=now - began,
                    )  # fmt: skip
                    answer.filled = stop
                    if stop == len(prompt):
                        answer.marks["prefilled"] = now - answer.granted
                        self.prefilled += 1
                        self._sample(att, answer, hidden)
            self.prefill()

        self._context.submit(
            lambda p: self.engine.prefill(lane, prompt, sampler, start, stop, p), done
        )

    def _sample(self, att: Attempt, answer: Answer, hidden: Blob) -> None:
        self._context.submit(
            lambda p: self.engine.first(answer.lane, hidden, p),
            lambda token, error: self._sampled(att, answer, token, error),
        )

    def _step(self) -> None:
        """One decode step of every lane that is decoding, if none is under way."""
        stepping = [(att, a) for att, a in self.answers.items() if a.stepping]
        if not stepping or self._stepping:
            return
        self._stepping = True
        lanes = [a.lane for _, a in stepping]

        def done(tokens: list[int], error: BaseException | None) -> None:
            self._stepping = False
            self.steps += 1
            for i, (att, answer) in enumerate(stepping):
                if self.answers.get(att) is not answer:
                    continue  # it ended while it stepped: no token after the end
                if error is None:
                    self._token(att, answer, tokens[i])
                else:
                    self._compute_failed(att, "step", error)
            self._step()

        self._context.submit(lambda p: self.engine.step(lanes, p), done)

    def _token(self, att: Attempt, answer: Answer, token: int) -> None:
        index, sampler = answer.n_tokens, answer.sampler
        if sampler.failed:
            self.fail(att, f"guide: {sampler.failed}")
            return
        answer.n_tokens += 1
        if self._cache:
            answer.made.append(token)
        finish = sampler.finish(token, answer.request.max_tokens)
        spans = answer.marks if index == 0 else {}
        self._context.event("token_sampled", att=att, lane=answer.lane, index=index, finish=finish)
        blobs = [Blob.of(row[None]) for row in sampler.logprobs or ()]
        message = Token(att, index, (token,), finish, dict(spans))
        self._context.send(self._coordinator, message, blobs)
        if finish:
            del self.answers[att]
            # the last token was never fed to a step, so the lane has no KV of it
            made = answer.made[:-1]
            self._do(self._owner.lane_done(self._context.now(), answer.lane, made))

    def _compute_failed(self, att: Attempt, what: str, error: BaseException) -> None:
        self.fail(att, f"{what}: {type(error).__name__}: {error}")

    def fail(self, att: Attempt, detail: str) -> None:
        answer = self.answers.pop(att)
        self._context.send(self._coordinator, Ended(att, Outcome.DECODE_ERROR, detail))
        if answer.lane >= 0:
            self._do(self._owner.lane_done(self._context.now(), answer.lane, failed=True))

    def keep(self, keep: KeepLane) -> None:
        """Before any import into that lane, as the worker is FIFO."""

        def kept(_: Any, error: BaseException | None) -> None:
            if error is not None and self._cache:
                self._cache.lost(keep.copies)
                self._context.event("prefix_not_kept", why=f"{type(error).__name__}: {error}")

        self._context.submit(lambda p: self.engine.keep(keep.lane, keep.copies, p), kept)
