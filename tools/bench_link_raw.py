"""The raw side of ``zpd bench link``: plain pyzmq in two processes, nothing checked or counted.

``python -m tools.bench_link_raw far`` says its address on stdout and serves. ``... near ADDRESS``
reads rounds from stdin, one JSON object a line, and answers each with one. The parts that they
send are zpd's own, made once. Against KV by shared memory, near alone copies the same bytes in
order into shared memory of a slot's size, and tells nobody. This is the only import of zmq outside
``zpd/transport.py``: here it is what zpd is held against.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import tempfile
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import zmq

from nodes.kv import SourceSlots
from nodes.segments import ROOT
from tools.bench_link_load import END, FORM, IDS, SHAPE, Bulk, op, parts, reply
from tools.bench_link_rounds import Round, Timed

OP_PARTS = 3  # of an op: magic, header, token ids


def near(address: str) -> None:
    socket = zmq.Context().socket(zmq.DEALER)
    socket.connect(address)
    ops = parts(op(100_000), (IDS,))
    bulks: dict[int, list[bytes | memoryview]] = {}
    memory = _shared()
    for line in sys.stdin:
        wanted = Round(**json.loads(line))
        if wanted.mib and wanted.mib not in bulks:
            bulks[wanted.mib] = _bulk_parts(wanted.mib)
        if wanted.kind == "shm":
            timed = _copy(memory, wanted, bulks[wanted.mib][2:])
        elif wanted.kind == "kv":
            timed = _run(socket, wanted, bulks[wanted.mib], copy=False)
        else:
            timed = _run(socket, wanted, ops, copy=True)
        print(json.dumps(timed.figures()), flush=True)


def _bulk_parts(mib: int) -> list[bytes | memoryview]:
    bulk = Bulk(mib)
    return parts(bulk.message(0), bulk.blobs())


def _run(socket: Any, wanted: Round, message: Sequence[Any], *, copy: bool) -> Timed:
    timed = Timed(wanted)
    for _ in range(min(wanted.depth, wanted.count)):
        timed.sent()
        socket.send_multipart(message, copy=copy)
    for n in range(wanted.count):
        socket.recv_multipart()
        timed.answered()
        if n + wanted.depth < wanted.count:
            timed.sent()
            socket.send_multipart(message, copy=copy)
    return timed


def _shared() -> np.ndarray[Any, Any]:
    """Shared memory of a slot's size, every page of it touched."""
    with tempfile.TemporaryFile(dir=ROOT) as file:
        file.truncate(SHAPE.nbytes)
        memory = np.frombuffer(mmap.mmap(file.fileno(), SHAPE.nbytes), np.uint8)
    memory.fill(0)
    return memory


def _copy(memory: np.ndarray[Any, Any], wanted: Round, parts: Sequence[Any]) -> Timed:
    timed = Timed(wanted)
    sources = [np.frombuffer(part, np.uint8) for part in parts]
    at = 0
    for _ in range(wanted.count):
        timed.sent()
        for source in sources:
            np.copyto(memory[at : at + source.nbytes], source)
            at = (at + source.nbytes) % memory.nbytes
        timed.answered()
    return timed


def far() -> None:
    socket = zmq.Context().socket(zmq.ROUTER)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    print(f"tcp://127.0.0.1:{port}", flush=True)
    answer = parts(reply(op(100_000), (0.001, 0.002)))
    credit = parts(END)
    part = SourceSlots(1, FORM).kv[0]
    at = 0
    while True:
        route, *frames = socket.recv_multipart(copy=False)
        if len(frames) == OP_PARTS:
            socket.send_multipart([route, *answer])
            continue
        k, v = (np.frombuffer(f.buffer, np.float32) for f in frames[2:])
        shape = (SHAPE.layers, SHAPE.kv_heads, -1, SHAPE.head_dim)
        k, v = k.reshape(shape), v.reshape(shape)
        at = at if at + k.shape[2] <= SHAPE.max_tokens else 0
        part[:, 0, :, at : at + k.shape[2]] = k
        part[:, 1, :, at : at + k.shape[2]] = v
        at += k.shape[2]
        socket.send_multipart([route, *credit])


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "far":
        threading.Thread(target=_end_with_parent, daemon=True).start()
        far()
    else:
        near(sys.argv[2])
