"""Pure. The matrix of the bench: what is run, how often, and in which sizes on a slow machine."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# R30, in tokens (input, output).
INPUTS, OUTPUTS = (128, 8192), (32, 128)
CONCURRENCY = (1, 4)
REPEATS = 3  # of each shape and concurrency, off and on: 48 batches
PAIRS = 9  # of off and on that medians are made of, with the matrix's own
# (input, output) is divided by these, until a model's run fits its budget: the first that does.
SCALES = ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (16, 2), (16, 4), (32, 4), (32, 8))
CHUNK = 128  # tokens; a short input is one chunk at every scale


@dataclass(frozen=True)
class Shape:
    """Tokens. ``name`` says what R30 calls it."""

    name: str
    n_prompt: int
    n_tokens: int

    @property
    def chunks(self) -> int:
        return -(-self.n_prompt // CHUNK)


@dataclass(frozen=True)
class Case:
    """One batch: ``c`` equal requests at once. ``matrix``: one of R30's 48."""

    shape: Shape
    c: int
    on: bool
    eos: bool = False
    matrix: bool = True

    @property
    def group(self) -> tuple[str, int, bool]:
        """Whose answers must be equal."""
        return self.shape.name, self.c, self.eos

    def __str__(self) -> str:
        kind = ", EOS" if self.eos else ""
        return f"{self.shape.name} c={self.c} {'on' if self.on else 'off'}{kind}"


@dataclass(frozen=True)
class Size:
    """How large a run is. ``alone``, ``crowd``: pairs at concurrency 1 and at the largest one."""

    repeats: int = REPEATS
    alone: int = PAIRS
    crowd: int = PAIRS

    def pairs(self, c: int) -> int:
        return max(self.repeats, self.alone if c == 1 else self.crowd)


def shapes(scale: tuple[int, int]) -> tuple[Shape, ...]:
    """The four, inputs over 128 and outputs divided by ``scale``."""
    return tuple(
        Shape(f"{n}/{m}", n if n == min(INPUTS) else n // scale[0], m // scale[1])
        for n in INPUTS
        for m in OUTPUTS
    )


def eos_shapes(of: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Those with the longer output, whose answers may end before it."""
    return tuple(s for s in of if s.name.endswith(f"/{max(OUTPUTS)}"))


def cases(of: tuple[Shape, ...], size: Size) -> Iterator[Case]:
    """All batches as they run: off and on alternate, and so does which of them is first. Those that
    only make medians better come last."""
    most = max(map(size.pairs, CONCURRENCY))
    yield from _repeats(of, size, 0, size.repeats)
    for shape in eos_shapes(of):
        for c in CONCURRENCY:
            yield from (Case(shape, c, on, eos=True, matrix=False) for on in (False, True))
    yield from _repeats(of, size, size.repeats, most)


def _repeats(of: tuple[Shape, ...], size: Size, start: int, stop: int) -> Iterator[Case]:
    for repeat in range(start, stop):
        order = (False, True) if repeat % 2 == 0 else (True, False)
        for shape in of:
            for c in CONCURRENCY:
                if repeat < size.pairs(c):
                    matrix = repeat < size.repeats
                    yield from (Case(shape, c, on, matrix=matrix) for on in order)


def cost(of: tuple[Shape, ...], size: Size, per_token: float, per_step: float) -> float:
    """Seconds that ``cases`` take at most (nothing gained), from two rates."""
    return sum(
        case.c * (case.shape.n_prompt * per_token + case.shape.n_tokens * per_step)
        for case in cases(of, size)
    )


def fit(
    room: int, budget: float, per_token: float, per_step: float, sizes: Sequence[Size]
) -> tuple[tuple[int, int], Size]:
    """The first of ``SCALES`` at which ``room`` tokens hold every shape and the run of one of the
    ``sizes``, the first such, ends within ``budget`` seconds; else the last of both."""
    for scale in SCALES:
        of = shapes(scale)
        if any(s.n_prompt + s.n_tokens > room for s in of):
            continue
        for size in sizes:
            if cost(of, size, per_token, per_step) <= budget:
                return scale, size
    return SCALES[-1], sizes[-1]


def prompt(seed: int, n: int, vocab: int) -> list[int]:
    """``n`` token ids, always the same ones for one seed; no special ids where there are 256 and
    more besides."""
    low = 256 if vocab > 1024 else 0
    draw = random.Random(seed)
    return [draw.randrange(low, vocab) for _ in range(n)]


QUESTIONS = (
    "Say hello.",
    "What is the capital of France? Answer with one word.",
    "What is 2 + 2? Answer with a number only.",
    "Name a colour. One word.",
)


def question(i: int, n: int) -> str:
    """A text of about ``n`` tokens that ends with a question whose answer is short."""
    return "The sky is blue today. " * max(0, n // 8 - 8) + QUESTIONS[i % len(QUESTIONS)]
