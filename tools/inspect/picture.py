"""The pictures of a report, as SVG text: a timeline of all tracks, and histograms.

A timeline has a fixed number of columns; what falls into the same column of a track is drawn once,
so that its size does not depend on the log's. Colours are classes: the page's style has them, for
light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from tools.inspect.intervals import Interval

COLUMNS = 1000  # of a timeline
ROW, GAP, LEFT = 16, 4, 150  # units: height of a track, between two, room for its name
MOST = 20000  # rectangles of a page
BINS = 24
DRAWN = {
    "request": "request", "compute": "compute", "send": "send", "import": "import",
    "local": "compute", "lane": "lane", "queue": "queue",
}  # fmt: skip


@dataclass
class _Rect:
    start: float  # in columns
    stop: float
    style: str
    title: str


@dataclass
class Timeline:
    """Takes intervals in the order of their ends; ``svg`` draws what it took."""

    start: float
    stop: float
    tracks: dict[tuple[str, str], list[_Rect]] = field(default_factory=dict)
    count: int = 0
    left_out: int = 0
    window: list[tuple[float, int]] = field(default_factory=list)
    node: str = ""  # whose the window is

    def add(self, x: Interval) -> None:
        if x.kind == "window":
            self._window(x)
            return
        style = f"slot-{x.name}" if x.kind == "slot" else DRAWN.get(x.kind)
        if style is None:
            return
        a, b = self._column(x.start), self._column(x.stop)
        track = self.tracks.setdefault((x.node, self._track(x, a)), [])
        if track and track[-1].style == style and b - track[-1].stop < 1 and a >= track[-1].start:
            track[-1].stop = max(track[-1].stop, b)
        elif self.count < MOST:
            said = f"{x.name} {x.att}".strip()
            track.append(_Rect(a, b, style, f"{x.track}: {said}, {x.seconds:.3f} s"))
            self.count += 1
        else:
            self.left_out += 1

    def _track(self, x: Interval, start: float) -> str:
        """Requests overlap: each goes to the first row where there is room."""
        if x.kind not in ("request", "queue"):
            return x.track
        for n in range(16):
            name = f"{x.track} {n}"
            rects = self.tracks.get((x.node, name))
            if not rects or rects[-1].stop <= start:
                return name
        return f"{x.track} 15"

    def _window(self, x: Interval) -> None:
        self.node = x.node
        at = self._column(x.start)
        value = max(x.value, 0)
        if self.window and at - self.window[-1][0] < 0.5:
            self.window[-1] = (self.window[-1][0], max(value, self.window[-1][1]))
        else:
            self.window.append((at, value))

    def _column(self, t: float) -> float:
        return COLUMNS * (t - self.start) / max(self.stop - self.start, 1e-9)

    def svg(self) -> str:
        parts: list[str] = []
        y = ROW
        if self.window:
            y = self._draw_window(parts, y)
        node = ""
        for (of, track), rects in sorted(self.tracks.items(), key=_order):
            if of != node:
                node = of
                y += GAP
                parts.append(f'<text class="node" x="0" y="{y + 12}">{escape(node)}</text>')
                y += ROW + 2
            parts.append(f'<text x="8" y="{y + 12}">{escape(track)}</text>')
            for r in rects:
                width = max(r.stop - r.start, 0.6)
                parts.append(
                    f'<rect class="{escape(r.style)}" x="{LEFT + r.start:.1f}" y="{y}" '
                    f'width="{width:.1f}" height="{ROW}"><title>{escape(r.title)}</title></rect>'
                )
            y += ROW + GAP
        parts = [*self._axis(y), *parts]  # the lines of the grid lie below
        return _svg(LEFT + COLUMNS + 10, y + 24, parts, "timeline of all nodes")

    def _draw_window(self, parts: list[str], y: int) -> int:
        most, height = max((n for _, n in self.window), default=1) or 1, 3 * ROW
        points = [f"{LEFT},{y + height}"]
        last = 0
        for at, n in self.window:
            points.append(f"{LEFT + at:.1f},{y + height * (1 - last / most):.1f}")
            points.append(f"{LEFT + at:.1f},{y + height * (1 - n / most):.1f}")
            last = n
        points.append(f"{LEFT + self.window[-1][0]:.1f},{y + height}")
        parts.append(f'<text class="node" x="0" y="{y + 12}">{escape(self.node)}</text>')
        parts.append(f'<text x="8" y="{y + 28}">outstanding (≤ {most})</text>')
        parts.append(f'<polygon class="window" points="{" ".join(points)}"/>')
        return y + height + GAP

    def _axis(self, y: int) -> list[str]:
        whole = self.stop - self.start
        parts = []
        for i in range(6):
            x = LEFT + COLUMNS * i / 5
            parts.append(f'<line class="grid" x1="{x}" y1="0" x2="{x}" y2="{y}"/>')
            anchor = "end" if i == 5 else "middle" if i else "start"
            said = f"{whole * i / 5:.3g} s"
            parts.append(f'<text x="{x}" y="{y + 16}" text-anchor="{anchor}">{said}</text>')
        return parts


def _order(item: tuple[tuple[str, str], list[_Rect]]) -> tuple[str, str, int]:
    (node, track), _ = item
    name, _, number = track.rpartition(" ")
    return (node, name, int(number)) if number.isdigit() else (node, track, 0)


def histogram(name: str, values: Sequence[float], marks: dict[str, float]) -> str:
    """Seconds on a logarithmic axis; the marks (p50 ...) are lines."""
    low, high = max(min(values), 1e-6), max(max(values), 2e-6)
    high = max(high, low * 1.01)
    scale = math.log(high / low)
    counts = [0] * BINS
    for v in values:
        counts[min(BINS - 1, int(BINS * math.log(max(v, low) / low) / scale))] += 1
    most, width, height = max(counts), 360, 90
    bar = width / BINS
    parts = [f'<text class="node" x="0" y="12">{escape(name)} ({len(values)})</text>']
    for i, n in enumerate(counts):
        h = height * n / most
        parts.append(
            f'<rect class="bar" x="{i * bar:.1f}" y="{20 + height - h:.1f}" '
            f'width="{bar - 1:.1f}" height="{h:.1f}"><title>{n}</title></rect>'
        )
    for n, (mark, value) in enumerate(marks.items()):
        x = width * math.log(max(value, low) / low) / scale
        parts.append(f'<line class="mark" x1="{x:.1f}" y1="20" x2="{x:.1f}" y2="{20 + height}"/>')
        parts.append(f'<text x="{90 * n}" y="{height + 38}">{mark} {value:.3f}</text>')
    return _svg(width, height + 46, parts, f"distribution of {name}")


def stacked(rows: Iterable[tuple[str, dict[str, float]]], names: Sequence[str]) -> str:
    """One bar for each row, its parts in the order of ``names``."""
    rows = list(rows)
    whole = max((sum(parts.values()) for _, parts in rows), default=1.0) or 1.0
    drawn: list[str] = []
    for i, (label, parts) in enumerate(rows):
        y, x = i * (ROW + GAP), float(LEFT)
        drawn.append(f'<text x="0" y="{y + 12}">{escape(label[:24])}</text>')
        for name in names:
            width = COLUMNS * parts.get(name, 0.0) / whole
            if width > 0:
                said = f"{name} {parts[name]:.3f} s"
                drawn.append(
                    f'<rect class="span-{escape(name)}" x="{x:.1f}" y="{y}" width="{width:.1f}" '
                    f'height="{ROW}"><title>{escape(said)}</title></rect>'
                )
                x += width
    return _svg(LEFT + COLUMNS + 10, len(rows) * (ROW + GAP), drawn, "spans of requests")


def _svg(width: float, height: float, parts: Sequence[str], label: str) -> str:
    head = f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(label)}">'
    return head + "".join(parts) + "</svg>"
