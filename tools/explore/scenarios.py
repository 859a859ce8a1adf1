"""The table of scenarios: what may happen in each, and how many states that gives.

The counts are exact. One that changes says that the machines, or the model of the network, behave
otherwise than before: look at why, then write the new number here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tools.explore.shape import (
    CH,
    COORDINATOR,
    CT,
    DECODE,
    HD,
    HEAD,
    HT,
    NAMES,
    PAIRS,
    TAIL,
    TD,
    Bounds,
)


@dataclass(frozen=True)
class Scenario:
    """``states``: how many there are."""

    name: str
    bounds: Bounds
    deep: bool = False

    @property
    def states(self) -> int:
        return COUNTS[self.name]


def _both(name: str, bounds: Bounds, *, deep: str = "") -> list[Scenario]:
    """Over both transports; only with ``--deep`` over those that ``deep`` names."""
    return [
        Scenario(f"{name}, message", replace(bounds, shm=False), "message" in deep),
        Scenario(f"{name}, shm", replace(bounds, shm=True), "shm" in deep),
    ]


BOTH = "message shm"


def _faults(base: Bounds, prefix: str = "") -> list[Scenario]:
    """Each fault once."""
    found: list[Scenario] = []

    def add(name: str, bounds: Bounds, deep: str = "") -> None:
        found.extend(_both(prefix + name, bounds, deep=BOTH if prefix else deep))

    for node in range(4):
        # Orphans only: all leads to a free slot, and the table stays quick.
        fences = "orphans" if node == TAIL and not prefix else "any"
        deep = "message" if node in (HEAD, TAIL) else ""
        add(f"crash of {NAMES[node]}", replace(base, crashes=(node,), fences=fences), deep)
    for who, whom in (
        (DECODE, HEAD), (DECODE, TAIL), (DECODE, COORDINATOR),
        (COORDINATOR, HEAD), (COORDINATOR, TAIL), (COORDINATOR, DECODE),
    ):  # fmt: skip
        name = f"{NAMES[who]} suspects {NAMES[whom]}"
        add(name, replace(base, suspicions=((who, whom),)), BOTH if whom == TAIL else "")
    for who, whom in ((DECODE, HEAD), (COORDINATOR, TAIL)):
        name = f"{NAMES[who]} takes {NAMES[whom]} for stalled"
        add(name, replace(base, stalls=((who, whom),)), "message" if whom == HEAD else "")
    add("head greets again", replace(base, hellos=(HEAD,)))
    links = replace(base, fences="any" if prefix else "orphans")
    for pair in (CH, HT, CT, HD, TD):
        a, b = PAIRS[pair].ends
        name = f"broken link of {NAMES[a]} and {NAMES[b]}"
        add(name, replace(links, breaks=(pair,)), {TD: BOTH, HD: "message"}.get(pair, ""))
    return found


TWO = Bounds(shm=False)  # requests, of one chunk each
ONE = Bounds(shm=False, chunks=(1,))
SCENARIOS: tuple[Scenario, ...] = (
    *_both("two requests", TWO),
    *_both("two requests, a cancel", replace(TWO, cancels=1)),
    *_both("the same, hinted", replace(TWO, cancels=1, hints=True), deep="shm"),
    *_both("two requests, two cancels", replace(TWO, cancels=2), deep=BOTH),
    *_both("two chunks, a cancel", replace(TWO, chunks=(2, 1), cancels=1), deep=BOTH),
    *_both("window of one op", replace(TWO, chunks=(2, 1), cancels=1, depth=1), deep="shm"),
    *_both("no prefetch", replace(TWO, cancels=1, prefetch=False), deep="shm"),
    *_both("two slots, two lanes", replace(TWO, slots=2, lanes=2, prefetch=False)),
    *_both("an import fails", replace(TWO, cancels=1, failed_imports=1), deep="message"),
    *_both("hasty terms", replace(ONE, faults=1, breaks=(HT,), hasty=True)),
    # A retry: the second request comes when the first is over, after the fault.
    *_faults(replace(TWO, faults=1, retry=True)),
    # The same with the requests at any time.
    *_faults(replace(TWO, faults=1), "deep: "),
    *_both(
        "deep: crash of head, a cancel",
        replace(ONE, cancels=1, faults=1, crashes=(HEAD,)),
        deep=BOTH,
    ),
    *_both(
        "deep: hasty crash of head", replace(ONE, faults=1, crashes=(HEAD,), hasty=True), deep=BOTH
    ),
    *_both(
        "deep: two slots, a cancel",
        replace(TWO, slots=2, lanes=2, cancels=1, prefetch=False),
        deep=BOTH,
    ),
    *_both("deep: three requests, a cancel", replace(TWO, chunks=(1, 1, 1), cancels=1), deep=BOTH),
    *_both(
        "deep: two faults",
        replace(ONE, faults=2, crashes=(HEAD,), suspicions=((DECODE, HEAD),), breaks=(HT,)),
        deep=BOTH,
    ),
)
COUNTS: dict[str, int] = {
    "two requests, message": 1_082,
    "two requests, shm": 2_380,
    "two requests, a cancel, message": 7_397,
    "two requests, a cancel, shm": 19_950,
    "the same, hinted, shm": 60_193,
    "window of one op, shm": 37_534,
    "no prefetch, message": 4_454,
    "two slots, two lanes, message": 3_447,
    "two slots, two lanes, shm": 23_208,
    "an import fails, shm": 30_632,
    "hasty terms, message": 8_383,
    "hasty terms, shm": 14_701,
    "crash of coordinator, message": 6_340,
    "crash of coordinator, shm": 10_842,
    "crash of head, message": 30_830,
    "crash of head, shm": 52_390,
    "crash of tail, shm": 63_342,
    "crash of decode, message": 8_216,
    "crash of decode, shm": 14_908,
    "decode suspects head, message": 19_403,
    "decode suspects head, shm": 35_168,
    "decode suspects coordinator, message": 3_753,
    "decode suspects coordinator, shm": 6_201,
    "coordinator suspects head, message": 3_969,
    "coordinator suspects head, shm": 6_940,
    "coordinator suspects decode, message": 3_279,
    "coordinator suspects decode, shm": 5_761,
    "decode takes head for stalled, message": 10_727,
    "decode takes head for stalled, shm": 17_444,
    "coordinator takes tail for stalled, message": 3_969,
    "coordinator takes tail for stalled, shm": 6_940,
    "head greets again, message": 586,
    "head greets again, shm": 1_126,
    "broken link of coordinator and head, message": 3_468,
    "broken link of coordinator and head, shm": 4_825,
    "broken link of head and tail, message": 6_597,
    "broken link of head and tail, shm": 9_686,
    "broken link of coordinator and tail, message": 5_643,
    "broken link of coordinator and tail, shm": 8_233,
    "broken link of head and decode, message": 26_902,
    "broken link of head and decode, shm": 49_397,
    "the same, hinted, message": 22_210,
    "window of one op, message": 11_274,
    "two requests, two cancels, message": 17_558,
    "two requests, two cancels, shm": 52_619,
    "two chunks, a cancel, message": 17_224,
    "two chunks, a cancel, shm": 59_131,
    "no prefetch, shm": 12_296,
    "an import fails, message": 11_386,
    "crash of tail, message": 41_738,
    "decode suspects tail, message": 23_532,
    "decode suspects tail, shm": 37_900,
    "coordinator suspects tail, message": 4_044,
    "coordinator suspects tail, shm": 7_041,
    "broken link of tail and decode, message": 33_628,
    "broken link of tail and decode, shm": 53_915,
    "deep: crash of coordinator, message": 26_849,
    "deep: crash of coordinator, shm": 60_343,
    "deep: crash of head, message": 235_021,
    "deep: crash of head, shm": 663_420,
    "deep: crash of tail, message": 302_540,
    "deep: crash of tail, shm": 802_782,
    "deep: crash of decode, message": 54_369,
    "deep: crash of decode, shm": 142_462,
    "deep: decode suspects head, message": 165_001,
    "deep: decode suspects head, shm": 561_944,
    "deep: decode suspects tail, message": 184_968,
    "deep: decode suspects tail, shm": 591_576,
    "deep: decode suspects coordinator, message": 17_274,
    "deep: decode suspects coordinator, shm": 41_842,
    "deep: coordinator suspects head, message": 45_700,
    "deep: coordinator suspects head, shm": 119_875,
    "deep: coordinator suspects tail, message": 40_843,
    "deep: coordinator suspects tail, shm": 103_065,
    "deep: coordinator suspects decode, message": 17_975,
    "deep: coordinator suspects decode, shm": 44_679,
    "deep: decode takes head for stalled, message": 71_381,
    "deep: decode takes head for stalled, shm": 176_305,
    "deep: coordinator takes tail for stalled, message": 45_700,
    "deep: coordinator takes tail for stalled, shm": 119_875,
    "deep: head greets again, message": 2_164,
    "deep: head greets again, shm": 4_760,
    "deep: broken link of coordinator and head, message": 47_337,
    "deep: broken link of coordinator and head, shm": 122_918,
    "deep: broken link of head and tail, message": 71_862,
    "deep: broken link of head and tail, shm": 177_687,
    "deep: broken link of coordinator and tail, message": 48_979,
    "deep: broken link of coordinator and tail, shm": 121_690,
    "deep: broken link of head and decode, message": 181_604,
    "deep: broken link of head and decode, shm": 601_678,
    "deep: broken link of tail and decode, message": 200_917,
    "deep: broken link of tail and decode, shm": 628_221,
    "deep: crash of head, a cancel, message": 32_727,
    "deep: crash of head, a cancel, shm": 52_184,
    "deep: hasty crash of head, message": 69_772,
    "deep: hasty crash of head, shm": 113_923,
    "deep: two slots, a cancel, message": 22_691,
    "deep: two slots, a cancel, shm": 151_531,
    "deep: three requests, a cancel, message": 40_063,
    "deep: three requests, a cancel, shm": 212_889,
    "deep: two faults, message": 570_787,
    "deep: two faults, shm": 929_750,
}
