"""The table of mutants: one rule broken in each, and how long the shortest path to the harm is.

Some rules have a second one behind them. Such a mutant breaks both; ``behind`` names the other, and
``control`` is the world where that one alone is broken, in which nothing may be found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tools.explore import wrong
from tools.explore.shape import COORDINATOR, DECODE, HD, HEAD, Bounds, Rules

READS_STALE = "the import of"
STUCK = "nothing leads to a free slot any more"
ONLY_A_FENCE = "everyone lives, and only a fence leads to a free slot"


@dataclass(frozen=True)
class Mutant:
    """``finds``: how the violation's text begins."""

    name: str
    bounds: Bounds
    rules: Rules
    finds: str = READS_STALE
    behind: str = ""
    control: Rules | None = None

    @property
    def length(self) -> int:
        """Steps on the shortest path."""
        return LENGTHS[self.name]


TWO = Bounds(shm=True)
CANCEL = replace(TWO, cancels=1, fences="none")
FENCED = replace(TWO, cancels=1)
ONE = replace(TWO, chunks=(1,))
RETRY = replace(TWO, faults=1, retry=True, fences="none")
SHM = Rules(shm=True)

MUTANTS: tuple[Mutant, ...] = (
    Mutant("free on release", CANCEL, replace(SHM, reservation=wrong.FreeOnRelease)),
    Mutant("a time-out frees", FENCED, replace(SHM, remap=False)),
    Mutant(
        "suspicion is taken as proof",
        replace(TWO, faults=1, stalls=((DECODE, HEAD),), fences="none"),
        replace(SHM, owner=wrong.SuspicionIsProofAndGrants),
        behind="no grant while a stage is suspect or a KV link is not open",
        control=replace(SHM, owner=wrong.GrantsBeforeOpened),
    ),
    Mutant("one end mark closes all writers", CANCEL, replace(SHM, owner=wrong.OneEndForAll)),
    Mutant(
        "writer opened at its first write",
        CANCEL,
        replace(SHM, reservation=wrong.OpenedAtFirstWrite, owner=wrong.OpensAtFirstWrite),
    ),
    Mutant("end mark before the writes landed", CANCEL, replace(SHM, end_waits=False)),
    Mutant(
        "end mark without epoch",
        replace(TWO, chunks=(1, 1, 1), cancels=1, retry=True),
        replace(SHM, owner=wrong.EndWithoutEpoch),
    ),
    Mutant("no epoch check on KV", replace(FENCED, shm=False), Rules(owner=wrong.KvWithoutEpoch)),
    Mutant(
        "no owner incarnation",
        replace(RETRY, crashes=(DECODE,)),
        replace(SHM, name="slot segment", opened_waits=False),
        behind="OPENED leaves behind all older writes",
        control=replace(SHM, opened_waits=False),
    ),
    Mutant(
        "a HELLO not newer than the granted one counts",
        replace(RETRY, hellos=(HEAD,)),
        replace(SHM, owner=wrong.AnyHello),
    ),
    Mutant(
        "op without the stage's incarnation",
        replace(RETRY, crashes=(HEAD,)),
        replace(SHM, replay=True, keep_old=(HEAD,), stage=wrong.AnyOp),
        behind="a session refuses another life's frames, and a stage other terms' ops",
        control=replace(SHM, replay=True, keep_old=(HEAD,), stage=wrong.AnyTerm),
    ),
    Mutant("segment named by slot only", FENCED, replace(SHM, name="owner slot")),
    Mutant(
        "an old term's op accepted",
        replace(RETRY, suspicions=((DECODE, HEAD),)),
        replace(SHM, stage=wrong.AnyTerm, keep_old=(1, 2)),
    ),
    Mutant("never_sent said wrongly", CANCEL, replace(SHM, scheduler=wrong.SaysNeverSent)),
    Mutant("import on the tail's word alone", ONE, replace(SHM, owner=wrong.ImportsOnTheTailsWord)),
    Mutant("import not counted as a user", CANCEL, replace(SHM, reservation=wrong.ImportIsNoUser)),
    Mutant(
        "no fence", replace(ONE, faults=1, crashes=(HEAD,)), replace(SHM, fence=False), finds=STUCK
    ),
    Mutant("no CLOSE", ONE, replace(SHM, scheduler=wrong.NeverCloses), finds=STUCK),
    Mutant(
        "no end mark at a new term",
        replace(ONE, faults=1, breaks=(HD,)),
        replace(SHM, owner=wrong.NoEndAtNewTerm),
        finds=ONLY_A_FENCE,
    ),
    Mutant(
        "dead coordinator ignored",
        replace(ONE, faults=1, crashes=(COORDINATOR,)),
        replace(SHM, hear_coordinator=False),
        finds=STUCK,
    ),
)

LENGTHS: dict[str, int] = {
    "free on release": 19,
    "a time-out frees": 20,
    "suspicion is taken as proof": 22,
    "one end mark closes all writers": 21,
    "writer opened at its first write": 19,
    "end mark before the writes landed": 20,
    "end mark without epoch": 37,
    "no epoch check on KV": 12,
    "no owner incarnation": 26,
    "a HELLO not newer than the granted one counts": 23,
    "op without the stage's incarnation": 31,
    "segment named by slot only": 20,
    "an old term's op accepted": 29,
    "never_sent said wrongly": 19,
    "import on the tail's word alone": 7,
    "import not counted as a user": 20,
    "no fence": 4,
    "no CLOSE": 1,
    "no end mark at a new term": 7,
    "dead coordinator ignored": 3,
}
