"""What a bench asks of one engine: the questions of each case, in the order of the plan."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from nodes.models.directory import resolve
from tools.ahead import plan
from tools.ahead.engine import Engine, Pair, Question
from tools.ahead.nodes import MODEL
from tools.ahead.plan import Case, Shape
from tools.ahead.report import Ran
from tools.warm.flags import SYNTHETIC, Say
from zpd.layers import TOY
from zpd.topology import Node

TOY_EOS = " ".join(map(str, range(0, 256, 16)))  # of synthetic compute: one token in 16 is an end


@dataclass(frozen=True)
class Load:
    """``compute``: synthetic, or a model's name. ``limit``: tokens that it was made for; 0: none.
    ``seconds``: P and D of synthetic compute, spread evenly over a prompt's ops, an answer's steps.
    """

    compute: str
    dtype: str
    limit: int
    vocab: int
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.compute} {self.dtype}".strip()

    def engine(self, shapes: Sequence[Shape]) -> Engine:
        room = max(s.n_prompt + s.n_tokens for s in shapes)
        if self.compute == SYNTHETIC:
            return Engine(TOY, Node.dtype, room)
        return Engine(self.compute, self.dtype, room)

    def rates(self, warm: Pair, shapes: Sequence[Shape]) -> tuple[float, float]:
        """(seconds for each token of a prompt, and of an answer), with everything warm."""
        case = Case(max(shapes, key=lambda s: s.n_prompt), 1, on=False)
        self.one(warm, case)
        ran = [self.one(warm, case) for _ in range(3)]
        p, d = median(r.p[0] for r in ran), median(r.d[0] for r in ran)
        return p / case.shape.n_prompt, d / case.shape.n_tokens

    def run(
        self, warm: Pair, shapes: Sequence[Shape], size: plan.Size, budget: float, say: Say
    ) -> list[Ran]:
        """Every case of the plan, after one of each shape that only warms up. After ``budget``
        seconds without the pairs that only make medians better."""
        until = time.monotonic() + budget
        for shape in shapes:
            say(f"warms up with {shape.name}")
            self.one(warm, Case(shape, 1, on=False))
        cases = list(plan.cases(tuple(shapes), size))
        found: list[Ran] = []
        for i in range(0, len(cases), 2):  # a pair is whole or not there
            for case in cases[i : i + 2]:
                if case.eos or case.matrix or time.monotonic() < until or len(found) % 2:
                    say(f"{len(found) + 1} of {len(cases)}: {case}")
                    found.append(self.one(warm, case))
        return found

    def one(self, warm: Pair, case: Case) -> Ran:
        op, step = self.seconds / case.shape.chunks, self.seconds / (case.shape.n_tokens - 1)
        end = TOY_EOS if self.compute == SYNTHETIC else MODEL
        warm.switch(case.on, end if case.eos else "", op, step)
        batch = warm.batch([self._question(case, i) for i in range(case.c)])
        return Ran(
            case=case,
            seconds=batch.seconds,
            others=batch.others,
            answers=tuple(a.ids for a in batch.answers),
            stopped=sum(a.outcome == "stop" for a in batch.answers),
            spans=tuple(a.spans for a in batch.answers),
            notes=batch.notes,
        )

    def _question(self, case: Case, i: int) -> Question:
        shape = case.shape
        if not case.eos or self.compute == SYNTHETIC:
            ids = plan.prompt(i, shape.n_prompt, self.vocab)
            return Question("ids", json.dumps(ids), shape.n_tokens)
        text = plan.question(i, shape.n_prompt)
        if self._has_template():
            text = json.dumps([{"role": "user", "content": text}])
            return Question("chat", text, shape.n_tokens)
        return Question("raw", text, shape.n_tokens)

    def _has_template(self) -> bool:
        path = resolve(self.compute)
        config = path / "tokenizer_config.json"
        said = json.loads(config.read_bytes()) if config.is_file() else {}
        return (path / "chat_template.jinja").is_file() or "chat_template" in said
