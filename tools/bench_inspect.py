"""``zpd bench inspect``: how fast `zpd inspect requests` and `check` read a large log, next to what
msgspec alone takes to decode it, and how much memory they need.

The log is made here, as four nodes at level debug would write it, and breaks no rule. Each command
is a process of its own, so its time has the interpreter's start in it. Speeds are compared by CPU
time, which other work on the machine disturbs less; wall time is shown too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from tools.inspect.records import texts
from tools.launch import child_environment
from zpd.errors import UserError
from zpd.events import LOG_VERSION

MB = 10**6
SIZE = 64  # MB
CHUNKS, CHUNK, TOKENS = 8, 128, 64  # of each request
SLOTS, STAGES = 2, ("stage-0", "stage-1")
C, D = "coordinator", "decode"
MEASURED = ("requests", "check")
LEAST, MOST = 0.25, 300  # of msgspec's speed; MB of memory


@dataclass(frozen=True)
class Row:
    what: str
    wall_s: float
    cpu_s: float
    mb_s: float
    ratio: float  # of msgspec's speed
    rss_mb: float


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("inspect", help="speed and memory of zpd inspect on a large log")
    parser.set_defaults(measure=run)
    parser.add_argument("--mb", type=int, default=SIZE, help="size of the log (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run(args: argparse.Namespace) -> int:
    if not 1 <= args.mb <= 10**5:
        raise UserError(f"--mb {args.mb}: must be from 1 to 100000")
    with tempfile.TemporaryDirectory(prefix="zpd-inspect-") as name:
        found = measure(Path(name), args.mb * MB)
    if args.json:
        print(json.dumps(found))
    else:
        print(f"{found['mb']:.0f} MB, {found['lines']} lines, {found['requests']} requests")
        print(f"msgspec decodes it in {found['decode_s']:.2f} s, {found['decode_mb_s']:.0f} MB/s")
        for row in found["rows"]:
            print(
                f"zpd inspect {row['what']}: {row['cpu_s']:.2f} s, {row['mb_s']:.0f} MB/s "
                f"({row['wall_s']:.2f} s by the clock), "
                f"{row['ratio']:.2f} of msgspec's speed, {row['rss_mb']:.0f} MB of memory"
            )
    return 0 if found["right"] else 1


def measure(directory: Path, nbytes: int) -> dict[str, Any]:
    requests = generate(directory, nbytes)
    files = sorted(directory.glob("*.jsonl"))
    size = sum(f.stat().st_size for f in files)
    lines, seconds = decode(files)
    rows = [_timed(directory, what, size, seconds) for what in MEASURED]
    return {
        "mb": size / MB,
        "lines": lines,
        "requests": requests,
        "decode_s": seconds,
        "decode_mb_s": size / MB / seconds,
        "rows": [asdict(row) for row in rows],
        "right": all(row.ratio >= LEAST and row.rss_mb < MOST for row in rows),
    }


def decode(files: list[Path]) -> tuple[int, float]:
    """(lines, CPU seconds) of msgspec alone, block by block, into plain objects."""
    decoder = msgspec.json.Decoder()
    lines, began = 0, time.process_time()
    for file in files:
        for _, text in texts(file):
            lines += len(decoder.decode_lines(text))
    return lines, time.process_time() - began


def _timed(directory: Path, what: str, size: int, alone: float) -> Row:
    command = [sys.executable, "-P", "-m", "zpd", "inspect", str(directory), what, "--json"]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=child_environment())
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    seconds = usage.ru_utime + usage.ru_stime
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise UserError(f"zpd inspect {what}: exit code {process.returncode}")
    return Row(what, wall, seconds, size / MB / seconds, alone / seconds, usage.ru_maxrss / 1024)


# ---- the log -------------------------------------------------------------------------------------


def generate(directory: Path, nbytes: int) -> int:
    """How many requests it has. One after the other, so each node's lines are in their order."""
    with ExitStack() as stack:
        files = {
            node: stack.enter_context((directory / f"{node}.jsonl").open("w", encoding="utf-8"))
            for node in (C, D, *STAGES)
        }
        written = n = seq = 0
        for node, event, level, rest in _beginning():
            files[node].write(_line(node, 0.0, level, event, rest))
        while written < nbytes:
            n += 1
            for node, event, level, rest in _request(n, seq):
                written += files[node].write(_line(node, n * 0.5, level, event, rest))
            seq += CHUNKS
        for node, file in files.items():
            file.write(_line(node, n * 0.5 + 1, "info", "node_stopped", ""))
    return n


def _line(node: str, mono: float, level: str, event: str, rest: str) -> str:
    return (
        f'{{"time":"2026-01-01T00:00:00.000000Z","mono":{mono:.6f},"node":"{node}","incarnation":'
        f'1761900000000001,"level":"{level}","event":"{event}"{rest}}}\n'
    )


Line = tuple[str, str, str, str]  # node, event, level, its fields as JSON
DEBUG = "debug"


def _beginning() -> Iterator[Line]:
    roles = {C: "coordinator", D: "decode"} | dict.fromkeys(STAGES, "prefill")
    for node, role in roles.items():
        about = f',"role":"{role}","log_version":{LOG_VERSION},"log_level":"debug","clock":"x"'
        yield node, "node_started", "info", f',"pid":1,"address":"","topology":"bench"{about}'
    for stage in STAGES:
        yield stage, "term_opened", "info", ',"term":"1.1"'
    yield C, "ring_opened", "info", ',"term":"1.1","stages":[1,1]'


def _request(n: int, seq: int) -> Iterator[Line]:
    """One request, whole: ops one by one."""
    uid, att = f"1761900000000001-{n}", f'"att":"1761900000000001.{n}"'
    slot, epoch = n % SLOTS, (n + SLOTS - 1) // SLOTS if n % SLOTS else n // SLOTS
    use = f'"use":"1761900000000001/{slot}@{epoch}"'
    yield (
        C,
        "request_accepted",
        "info",
        (f',"uid":"{uid}","label":"bench","n_prompt":{CHUNKS * CHUNK},"max_tokens":{TOKENS}'),
    )
    yield C, "attempt_reserved", DEBUG, f',"uid":"{uid}",{att}'

    def step(event: str, user: str, before: str, after: str) -> Line:
        said = f',"slot":{slot},"epoch":{epoch},"step":"{event}","user":"{user}"'
        states = f',"before":"{before}","after":"{after}",{att},"age":0.012'
        return D, "slot_transition", DEBUG, said + states

    yield step("reserve", "", "free", "ready")
    yield step("opened", STAGES[0], "ready", "filling")
    yield step("opened", STAGES[1], "filling", "filling")
    yield C, "attempt_granted", DEBUG, f',{att},{use},"waited":0.000123'
    for i in range(CHUNKS):
        start, stop = i * CHUNK, (i + 1) * CHUNK
        op = f',{att},{use},"seq":{seq + i + 1},"start":{start},"stop":{stop}'
        last = "true" if i == CHUNKS - 1 else "false"
        yield C, "op_sent", DEBUG, f'{op},"last":{last},"more":false,"outstanding":1,"depth":4'
        for stage in STAGES:
            yield stage, "op_arrived", DEBUG, op
            times = '"waited":0.000012,"computed":0.012345,"sent":0.000123'
            yield stage, "op_computed", DEBUG, f'{op},"skip":"",{times}'
            landed = f',{use},"writer":"{stage}","start":{start},"stop":{stop},"nbytes":393216'
            yield D, "kv_landed", DEBUG, landed
        yield C, "op_replied", DEBUG, f'{op},"skip":"","took":0.025,"outstanding":0'
    yield step("closed", STAGES[0], "filling", "filling")
    yield step("closed", STAGES[1], "filling", "ready")
    yield D, "lane_changed", DEBUG, f',"lane":0,"before":"",{att.replace("att", "after")}'
    yield step("opened", "@import", "ready", "importing")
    yield D, "import_started", DEBUG, f',{att},{use},"lane":0'
    yield D, "import_ended", DEBUG, f',{att},{use},"lane":0,"took":0.004,"error":""'
    yield step("closed", "@import", "importing", "ready")
    yield step("release", "", "ready", "free")
    yield D, "slot_freed", DEBUG, f',"slot":{slot},"epoch":{epoch}'
    for i in range(TOKENS):
        finish = "length" if i == TOKENS - 1 else ""
        yield D, "token_sampled", DEBUG, f',{att},"lane":0,"index":{i},"finish":"{finish}"'
        yield C, "text_sent", DEBUG, f',"uid":"{uid}","n_tokens":{i + 1}'
    yield D, "lane_changed", DEBUG, f',"lane":0,{att.replace("att", "before")},"after":""'
    spans = '{"tokenise":0.001,"queue":0.0,"reserve":0.002,"prefill":0.2,"decode":0.247}'
    yield (
        C,
        "request_done",
        "info",
        (
            f',"uid":"{uid}",{att},"label":"bench","outcome":"length","detail":"","route":"remote",'
            f'"n_prompt":{CHUNKS * CHUNK},"n_tokens":{TOKENS},"spans":{spans},"ttft":0.203,'
            '"e2e":0.45,"cached":0,"restored":0'
        ),
    )
