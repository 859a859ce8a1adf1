"""Does a run's log obey the rules? Every logged step is held against what must be true.

Each node's log is read once, in its order, and keeps no more than what is live. A life whose
beginning is missing, or that lost records, is only held against what can still be known: a rule is
never said to be broken because a line is missing that the log says it lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from tools.inspect.coordinator import CoordinatorRules
from tools.inspect.door import DoorRules, disagreements
from tools.inspect.owner import OwnerRules
from tools.inspect.records import Record, line_of
from tools.inspect.rules import Broken, Rules, Where
from tools.inspect.run import Run, Source
from tools.inspect.stage import StageRules
from zpd.events import LOG_VERSION

BACK = 2 * 65536  # lines: twice what the ring of a log holds (zpd.log.ROOM)
MOST = 1000  # problems that are kept
RULES: dict[str, Callable[[], Rules]] = {
    "coordinator": CoordinatorRules, "prefill": StageRules, "decode": OwnerRules,
    "http": DoorRules,
}  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """A broken rule, and the line that broke it."""

    node: str
    file: str
    line: int
    rule: str
    why: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.why}\n    {self.text}"


@dataclass
class Verdict:
    problems: list[Problem] = field(default_factory=list)
    more: int = 0  # problems beyond those
    records: int = 0
    checked: dict[str, int] = field(default_factory=dict)  # event -> how many were held to a rule
    notes: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        return {"right": self.right, **asdict(self)}


def check(run: Run) -> Verdict:
    verdict = Verdict()
    for source in run.sources.values():
        if source.version not in (0, LOG_VERSION):
            verdict.notes.append(f"{source.node}: not checked, as its log has other fields")
        elif make := RULES.get(source.role):
            _check(source, make(), verdict)
        else:
            verdict.notes.append(f"{source.node}: role {source.role or 'unknown'}: no rules")
    for source, broken in disagreements(run):
        _add(verdict, source, broken)
    if not run.debug:
        verdict.notes.append("log_level is not debug: only requests and their ends were checked")
    verdict.notes += run.said()
    return verdict


def _check(source: Source, rules: Rules, verdict: Verdict) -> None:
    handlers = rules.handlers()
    counts = Counter(dict.fromkeys(handlers, 0))
    life = -1
    for block in source.blocks():
        verdict.records += len(block.records)
        torn = list(block.torn)
        rules.block = block
        for i, record in enumerate(block.records):
            if torn and block.lines[i] > torn[0]:
                torn = [n for n in torn if n > block.lines[i]]
                rules.lost()
            if record.incarnation != life:
                life = record.incarnation
                rules.begin(record)
            handler = handlers.get(record.event)
            if handler is None:
                continue
            rules.i = i
            try:
                handler(record)
            except Broken as broken:
                _add(verdict, source, broken, (block.path, block.lines[i]))
            if rules.news:
                _settle(verdict, source, rules, record)
        found = Counter([r.event for r in block.records])
        counts.update({event: n for event, n in found.items() if event in handlers})
        if torn:
            rules.lost()
    for event, count in counts.items():
        verdict.checked[event] = verdict.checked.get(event, 0) + count


def _settle(verdict: Verdict, source: Source, rules: Rules, record: Record) -> None:
    """What the record shows of earlier ones: rules that they broke, or that some are missing. They
    are somewhere in the last ones, no further back than the log's own ring goes."""
    block, line = rules.block, rules.block.lines[rules.i]
    for earlier in rules.earlier:
        _add(verdict, source, earlier, (block.path, line))
    if rules.forgive:
        verdict.problems = [
            p
            for p in verdict.problems
            if (p.node, p.file) != (source.node, block.path.name) or p.line < line - BACK
        ]
        lost = f"{record.dropped} records were lost before it"
        verdict.notes.append(f"{block.path.name}:{line}: {lost}")
    rules.earlier, rules.forgive, rules.news = [], False, False


def _add(verdict: Verdict, source: Source, broken: Broken, where: Where | None = None) -> None:
    """``where``: the line to blame, unless the rule names another."""
    if len(verdict.problems) >= MOST:
        verdict.more += 1
        return
    found = broken.where or where
    assert found is not None
    path, line = found
    text = line_of(path, line)
    problem = Problem(source.node, path.name, line, broken.rule, broken.why, text)
    verdict.problems.append(problem)


def lines(verdict: Verdict) -> Iterator[str]:
    for problem in verdict.problems:
        yield str(problem)
    if verdict.more:
        yield f"{verdict.more} more are not shown"
    held = sum(verdict.checked.values())
    end = "every rule holds" if verdict.right else f"{len(verdict.problems)} rules are broken"
    yield f"{verdict.records} records, {held} held against a rule: {end}"
