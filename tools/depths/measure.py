"""What ``zpd bench window`` asks of a warm ring."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from nodes.engine.toy import toy_answer
from tools.depths import report
from tools.depths.report import Behind, Cut, Packed, Ran
from tools.depths.ring import Answer, Asker, Question
from tools.warm.flags import Say
from zpd import packing

DEPTHS = ("1", "2", "4", "8", "16", "auto")
REPEATS = 5
TOKENS = 2  # of an answer
WARM = 0.4  # of the long prompt's time: when the other one comes, or the cancel

Right = Callable[[Sequence[Sequence[int]]], bool]  # the answers' tokens of one batch


def prompt(seed: int, n: int, vocab: int) -> list[int]:
    """Always the same ones for one seed; no special ids where there are 256 and more besides."""
    low = 256 if vocab > 1024 else 0
    draw = random.Random(seed)
    return [draw.randrange(low, vocab) for _ in range(n)]


def toy_right(prompts: Sequence[Sequence[int]], layers: int) -> Right:
    """The hash chain over all KV, computed by other code."""
    wanted = [toy_answer(p, TOKENS, layers=layers) for p in prompts]
    return lambda said: [list(s) for s in said] == wanted


def same() -> Right:
    """Whatever the first batch said, each later one must say, too."""
    first: list[Sequence[Sequence[int]]] = []

    def right(said: Sequence[Sequence[int]]) -> bool:
        first.append(said)
        return said == first[0]

    return right


def depths(
    asker: Asker, prompt: Sequence[int], right: Right, which: Sequence[str], repeats: int, say: Say
) -> list[Ran]:
    """TTFT of one prompt, alone. The depths alternate, and each repeat begins with another one,
    after one run of each that only warms up."""
    found = []
    for repeat in range(-1, repeats):
        at = repeat % len(which)
        for depth in (*which[at:], *which[:at]):
            say(f"depth {depth}, {repeat + 1} of {repeats}" if repeat >= 0 else "warms up")
            if repeat < 0 and depth not in (which[-1], which[-2]):
                continue
            batch = asker.batch([Question(prompt, TOKENS)], depth)
            if repeat >= 0:
                (answer,) = batch.answers
                fine = right(_ids(batch.answers))
                found.append(Ran(depth, answer.ttft, batch.seen, fine, batch.others))
    return sorted(found, key=lambda r: which.index(r.depth))


def behind(
    asker: Asker, prompts: Sequence[Sequence[int]], right: Right, policy: str, depth: str,
    repeats: int,
) -> list[Behind]:  # fmt: skip
    """S7. ``prompts``: the long one and the short one."""
    found = []
    for _ in range(repeats):
        alone = asker.batch([Question(prompts[0], TOKENS)], depth, policy).answers[0].ttft
        both = [Question(prompts[0], TOKENS), Question(prompts[1], TOKENS, WARM * alone)]
        batch = asker.batch(both, depth, policy)
        long, short = batch.answers
        fine = right(_ids(batch.answers))
        found.append(Behind(alone, long.ttft, short.ttft, batch.seen, fine))
    return found


def cuts(
    asker: Asker, prompts: Sequence[Sequence[int]], right: Right, depth: str, repeats: int
) -> list[Cut]:
    """``prompts``: the one that is cancelled and the one behind it, which has its slot already.
    The cancels come at all moments of a chunk alike."""
    first = asker.batch([Question(prompts[0], TOKENS)], depth)
    alone, tau = first.answers[0].ttft, max(first.seen.taus)
    found = []
    for repeat in range(repeats):
        when = WARM * alone + tau * repeat / repeats
        both = [Question(prompts[0], TOKENS, cancel=when), Question(prompts[1], TOKENS, at=0.001)]
        batch = asker.batch(both, depth)
        found.append(Cut(batch.seen, right(_ids(batch.answers[1:]))))
    return found


def packs(
    asker: Asker, prompts: Sequence[Sequence[int]], right: Right, repeats: int
) -> list[Packed]:
    """S8. All ``prompts`` at once, with packing and without, in turn."""
    found = []
    for repeat in range(-1, repeats):
        for mode in (packing.OFF, packing.AUTO)[:: 1 if repeat % 2 else -1]:
            batch = asker.batch([Question(p, TOKENS) for p in prompts], DEPTHS[-1], packing=mode)
            if repeat >= 0:
                ttfts = [a.ttft for a in batch.answers]
                fine = right(_ids(batch.answers))
                found.append(Packed(mode, ttfts, batch.seen.took, fine))
    return found


def summary(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of one name's rows, as ``report.rows`` makes them."""
    by_depth = {r["depth"]: r for r in found}
    return {
        "name": found[0]["name"],
        "auto_vs_best": report.best(found),
        "auto_paired": report.paired(found),
        "depth_8_vs_1": by_depth["8"]["speedup_vs_depth1"],
        "law_8_vs_1": by_depth["8"]["law_speedup"],
        "fraction_of_law_8": by_depth["8"]["fraction_of_law"],
        "fraction_of_law_auto": by_depth["auto"]["fraction_of_law"],
    }


def _ids(answers: Sequence[Answer]) -> list[tuple[int, ...]]:
    return [a.ids for a in answers]
