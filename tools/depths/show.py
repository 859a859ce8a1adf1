"""The rows of ``zpd bench window`` as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Rows = Sequence[dict[str, Any]]


def show(rows: Rows, summaries: Rows, extra: Rows, loads: Rows) -> None:
    name = ""
    for r in rows:
        if r["name"] != name:
            name = r["name"]
            scale = f", lengths / {r['scale']}" if r.get("scale", 1) > 1 else ""
            print(f"\n{name}{scale}")
            print("  depth  used   TTFT      law       of it   replay's speedup  law's   spans")
        print(
            f"  {r['depth']:<5}  {r['used']:>4}  {r['ttft_s']:7.3f} s  {r['law_s']:7.3f} s  "
            f"{r['fraction_of_law']:6.1%}  {r['fraction_of_replay']:6.1%}  "
            f"{r['speedup_vs_depth1']:6.2f} x {r['law_speedup']:6.2f} x  "
            f"{r['span_inflation']:5.2f} x"
        )
    print()
    for r in summaries:
        print(
            f"{r['name']}: auto {r['auto_vs_best']:+.1%} to the best fixed depth, "
            f"{r['auto_paired']:+.1%} by pairs; "
            f"depth 8 against 1: {r['depth_8_vs_1']:.2f} x, by the law {r['law_8_vs_1']:.2f} x"
        )
    for r in extra:
        if "packing_gain" in r:
            print(f"{r['name']}: {_packed(r)}")
            continue
        said = _behind(r) if "policy" in r else _cut(r)
        print(f"{r['name']}, depth {r['depth']} ({r['used']} used): {said}")
    for r in loads:
        print(
            f"{r['name']}: {r['answers']} answers in {r['seconds']:.0f} s, at most {r['peak']} ops "
            f"out of {r['depth']}, memory {r['memory_bytes'] / 2**20:.0f} MiB "
            f"{r['memory_growth']:+.1%}"
        )


def _behind(r: dict[str, Any]) -> str:
    return (
        f"first token after {r['wait_chunks']:.1f} chunk times (most {r['most_wait_chunks']:.1f}, "
        f"bound {r['bound_chunks']}), costs {r['cost']:+.1%}"
    )


def _packed(r: dict[str, Any]) -> str:
    return (
        f"prefilled in {r['prefill_s']:.3f} s, without packing {r['prefill_off_s']:.3f} s "
        f"({r['prefill_gain']:+.1%}); the last first token after {r['last_ttft_s']:.3f} s, without "
        f"{r['last_ttft_off_s']:.3f} s ({r['packing_gain']:+.1%}); the median one after "
        f"{r['median_ttft_s']:.3f} s, without {r['median_ttft_off_s']:.3f} s"
    )


def _cut(r: dict[str, Any]) -> str:
    return (
        f"the next one starts after {r['start_chunks']:.2f} chunk times "
        f"(most {r['most_start_chunks']:.2f}), {r['stages_chunks']:.2f} of them until the stages "
        f"have ended the chunks they were in (most {r['most_stages_chunks']:.2f})"
    )
