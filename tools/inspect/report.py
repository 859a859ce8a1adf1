"""``report -o FILE.html``: a run on one page that needs nothing else: problems first, then the
timeline, latencies, the slowest requests, stages, slots. For light and dark, laptop and phone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from tools.inspect.intervals import intervals
from tools.inspect.picture import Timeline, histogram, stacked
from tools.inspect.requests import OPEN, SPANS
from tools.inspect.run import Run
from tools.inspect.slots import USUAL
from tools.inspect.summary import Summary
from zpd.errors import UserError

SHOWN = 20  # requests, uses, problems
COLOURS = {  # of spans, slots and tracks: hue, chosen so that neighbours differ
    "span-tokenise": 200, "span-queue": 0, "span-reserve": 20, "span-prefill": 215,
    "span-transfer": 275, "span-lane": 35, "span-import": 165, "span-first_token": 95,
    "span-first_text": 60, "span-decode": 130, "span-last_text": 60,
    "slot-filling": 215, "slot-ready": 165, "slot-importing": 130, "slot-draining": 35,
    "slot-orphaned": 0, "compute": 215, "send": 275, "import": 165, "lane": 130, "queue": 0,
    "request": 200, "window": 200, "bar": 215,
}  # fmt: skip
STYLE = """
:root{color-scheme:light dark;--fg:#1a1c20;--bg:#fff;--soft:#666c76;--line:#dde1e7;--card:#f6f7f9;
--l:46%;--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--fg:#e6e8eb;--bg:#15171a;--soft:#9aa1ab;--line:#343940;
--card:#1d2024;--l:58%;--bad:#ff8a80}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,sans-serif}main{max-width:1200px;margin:0 auto;padding:16px}
h1{font-size:1.4rem;margin:.2em 0}h2{font-size:1.1rem;margin:1.6em 0 .5em}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(130px,1fr));gap:8px}
.card{background:var(--card);border-radius:8px;padding:8px 12px}.card b{display:block;
font-size:1.25rem;overflow-wrap:anywhere}.card span,.soft{color:var(--soft);font-size:.85rem}
.wide{overflow-x:auto}.wide svg{min-width:760px;width:100%;height:auto;display:block}
.plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,320px),1fr));gap:16px}
.plots svg{width:100%;height:auto}svg text{fill:var(--soft);font-size:11px}
svg text.node{fill:var(--fg);font-weight:600}svg .grid{stroke:var(--line)}
svg .mark{stroke:var(--fg);stroke-dasharray:3 3}table{border-collapse:collapse;width:100%;
font-variant-numeric:tabular-nums}th,td{text-align:right;padding:3px 8px;white-space:nowrap;
border-bottom:1px solid var(--line)}th:first-child,td:first-child{text-align:left}
pre{background:var(--card);border-left:3px solid var(--bad);padding:8px;overflow-x:auto;
font-size:.8rem}.good{border-left:3px solid hsl(130 50% var(--l));padding-left:8px}
.key{display:inline-block;margin-right:12px;font-size:.8rem;color:var(--soft)}
.key i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:4px}
"""


def write(run: Run, path: Path) -> None:
    """Raises UserError."""
    summary = Summary.of(run)
    timeline = Timeline(*run.ends())
    for interval in intervals(run):
        timeline.add(interval)
    try:
        path.write_text("".join(_page(run, summary, timeline)), encoding="utf-8")
    except OSError as e:
        raise UserError(f"-o {path}: {e.strerror}") from None


def _page(run: Run, s: Summary, timeline: Timeline) -> Iterator[str]:
    title = f"zpd run {run.directories[0].resolve().name}"
    colours = "".join(
        f".{name}{{fill:hsl({hue} 55% var(--l));background:hsl({hue} 55% var(--l))}}"
        for name, hue in COLOURS.items()
    )
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width,initial-scale=1">'
    yield f"<title>{escape(title)}</title><style>{STYLE}{colours}</style></head><body><main>"
    yield f"<h1>{escape(title)}</h1>"
    yield _cards(s, timeline)
    yield from _problems(run, s)
    yield "<h2>Timeline</h2>"
    yield _keys("compute", "send", "import", "lane", "queue", "request")
    yield _keys(*(f"slot-{x}" for x in ("filling", "ready", "importing", "draining", "orphaned")))
    yield f'<div class="wide">{timeline.svg()}</div>'
    if timeline.left_out:
        yield f'<p class="soft">{timeline.left_out} intervals are not drawn.</p>'
    for stall in s.window.stalls[:3]:
        where = ", ".join(f"{place} {t:.3f} s" for place, t in stall.longest())
        said = f"{stall.seconds:.3f} s for op {stall.seq}: {where}"
        yield f'<p class="soft">A full window waited {escape(said)}.</p>'
    yield from _latencies(s)
    yield from _tables(s)
    yield "</main></body></html>\n"


def _cards(s: Summary, timeline: Timeline) -> str:
    times = s.times()
    cards = {
        "requests": str(len(s.rows)),
        "outcomes": ", ".join(f"{n} {name}" for name, n in s.outcomes.most_common()) or "-",
        "tokens": str(sum(r.n_tokens for r in s.rows)),
        "seconds": f"{timeline.stop - timeline.start:.2f}",
        "TTFT p50": f"{times['ttft']['p50']:.3f} s" if "ttft" in times else "-",
        "E2EL p50": f"{times['e2e']['p50']:.3f} s" if "e2e" in times else "-",
        "outstanding, mean": f"{s.window.mean:.2f}",
        "slots fenced": str(s.slots.fenced),
    }
    inside = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for name, value in cards.items()
    )
    return f'<div class="cards">{inside}</div>'


def _problems(run: Run, s: Summary) -> Iterator[str]:
    yield "<h2>Problems</h2>"
    stuck = [r for r in s.rows if r.outcome == OPEN]
    for problem in s.verdict.problems[:SHOWN]:
        yield f"<pre>{escape(str(problem))}</pre>"
    for row in stuck[:SHOWN]:
        yield f"<pre>request {escape(row.uid)} has no end in the log ({escape(row.at)})</pre>"
    if s.verdict.right and not stuck:
        yield '<p class="good">Every rule holds, and every request has its end.</p>'
    for note in dict.fromkeys([*s.verdict.notes, *run.said()]):
        yield f'<p class="soft">{escape(note)}</p>'


def _latencies(s: Summary) -> Iterator[str]:
    yield '<h2>Latencies</h2><div class="plots">'
    values: dict[str, list[float]] = {
        "TTFT": [r.ttft for r in s.rows if r.ttft],
        "E2EL": [r.e2e for r in s.rows if r.e2e],
        "TPOT": [r.spans.get("decode", 0.0) / (r.n_tokens - 1) for r in s.rows if r.n_tokens > 1],
    }
    marks = dict(zip(values, ("ttft", "e2e", "tpot"), strict=True))
    for name, of in values.items():
        if any(v > 0 for v in of):
            at = {k: v for k, v in s.times()[marks[name]].items() if k != "max"}
            yield histogram(f"{name}, seconds", of, at)
    yield "</div>"


def _tables(s: Summary) -> Iterator[str]:
    slowest = sorted(s.rows, key=lambda r: -(r.e2e or 0.0))[:SHOWN]
    if slowest:
        yield "<h2>The slowest requests</h2>"
        yield _keys(*(f"span-{x}" for x in SPANS))
        bars = [
            (f"{r.uid.rpartition('-')[2]}: {r.outcome}, {r.e2e or 0:.3f} s", r.spans)
            for r in slowest
        ]
        yield f'<div class="wide">{stacked(bars, SPANS)}</div>'
    if s.stages.stages:
        head = ("stage", "ops", "computed s", "queued s", "bubbles", "bubbles by the law")
        rows = [
            (x.name, str(x.ops), f"{x.computed:.3f}", f"{x.waited:.3f}",
             f"{s.stages.idle(x):.1%}", f"{s.stages.idle_by_law(x):.1%}")
            for x in s.stages.stages
        ]  # fmt: skip
        yield "<h2>Stages</h2>" + _table(head, rows)
        yield (
            f'<p class="soft">{s.stages.overlaps} of {s.stages.prefills} prompts were prefilled '
            "while another request decoded.</p>"
        )
    if s.slots.shown:
        head = ("slot", "epoch", "attempt", "ended by", "lost", "drain s")
        rows = [
            (f"{u.node} {u.slot}", str(u.epoch), u.att, u.end, ", ".join(u.lost), f"{u.drain:.3f}")
            for u in sorted(s.slots.shown, key=lambda u: (u.end in USUAL, -u.drain))[:SHOWN]
        ]
        yield "<h2>Slots: orphans and slow drains first</h2>" + _table(head, rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(c)}</{tag}>" for c in cells) + "</tr>"

    inside = line(head, "th") + "".join(line(row, "td") for row in rows)
    return f'<div class="wide"><table>{inside}</table></div>'


def _keys(*names: str) -> str:
    return "".join(
        f'<span class="key"><i class="{name}"></i>{escape(name.partition("-")[2] or name)}</span>'
        for name in names
    )
