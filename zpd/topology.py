"""Pure. A topology as frozen, typed objects: what a config file says, after it was checked.

``zpd.config`` reads and checks the TOML; nothing else builds these from outside input. Times are
seconds, sizes bytes unless a name says tokens or layers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from types import MappingProxyType
from typing import Any

from zpd import address, depth, lanecache, packing, prefetch
from zpd.sums import OFF

ROLES = ("coordinator", "prefill", "decode", "http")
AUTO = 0
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Timeouts:
    """Each failure class has its own budget. ``zpd check`` holds them against each other."""

    heartbeat: float = 0.5  # between two heartbeats
    suspect: float = 5.0  # silence, or a busy node whose work counter stands still
    handshake: float = 5.0  # HELLO to WELCOME
    reserve: float = 300.0  # a request may wait this long for its grant
    chunk: float = 60.0  # an op's trip round the ring, for each `chunk` tokens outstanding
    step: float = 60.0  # the import and first token, then the gap between two tokens
    drain: float = 30.0  # a released slot may wait this long for its writers, then it is fenced
    request: float = 600.0  # a request's whole life, unless it brings a shorter one
    stop: float = 5.0  # SIGTERM to exit


@dataclass(frozen=True)
class Http:
    """Of a node with role http: where it listens for HTTP, and what it lets in."""

    listen: str = "127.0.0.1:8000"  # HOST:PORT; port 0: any free one, which log and status show
    model: str = ""  # what clients call the model; "": the last part of its name
    api_keys: str = ""  # file:PATH (one key a line) or env:NAME (one key); "": none is needed
    cors: tuple[str, ...] = ()  # origins whose pages may read answers; none
    max_body: int = 4 * 2**20  # bytes of a request's body
    max_pending: int = 256  # requests between their arrival and their end
    stall: float = 30.0  # a reader who takes nothing for so long is cancelled


@dataclass(frozen=True)
class Node:
    """One process. ``layers`` is a half-open range; the decode node holds all layers.

    A role of one's own, ``module:Class``, names whom it dials in ``peers`` and ``bulk_peers``, and
    may have ``args``: JSON values, lists as tuples, tables as read-only mappings.
    """

    name: str
    role: str
    address: str  # tcp://HOST:PORT; where its mailbox binds and peers connect
    layers: tuple[int, int] = (0, 0)
    threads: int = 1
    device: str = "cpu"
    dtype: str = "float32"
    kv: str = "auto"  # how a stage's KV gets to the decode node: tcp, shm, or auto by their hosts
    host: str = ""  # the machine that runs it, as `zpd up --host` names it
    via: Mapping[str, str] = field(default_factory=lambda: NOTHING, hash=False)  # see dial_address
    peers: tuple[str, ...] = ()
    bulk_peers: tuple[str, ...] = ()
    args: Mapping[str, Any] = field(default_factory=lambda: NOTHING, hash=False)
    http: Http | None = None  # of role http only


@dataclass(frozen=True)
class Model:
    name: str  # a pulled model, a local directory in the Hugging Face format, or "toy"
    max_tokens: int = 2048  # room of a slot: prompt and answer, in tokens
    layers: int = 0  # how many the model has
    toy_seconds: float = 0.0  # of the toy only: what each op, import and decode step takes at least


@dataclass(frozen=True)
class Topology:
    """The whole system. ``stages`` are the prefill nodes in ring order."""

    name: str
    file: str
    model: Model
    nodes: tuple[Node, ...]
    chunk: int = 128  # tokens in an op
    prefill_depth: int = AUTO  # ops outstanding; AUTO: as many as are of use, by zpd.depth
    prefill_order: str = "fifo"  # of chunks across streams, by zpd.order
    prefill_bytes: int = 64 * 2**20  # payload bytes outstanding
    packing: str = packing.AUTO  # whether short prompts are computed at once, by zpd.packing
    lanes: int = 1
    source_slots: int = 1
    routing: str = prefetch.REMOTE  # who prefills: the ring, the decode node ("local"), or "cost"
    prefetch_next: bool = False  # the ring prefills the next request while the lane decodes one
    prefix_cache: str = lanecache.OFF  # whether the decode node keeps KV of finished requests ...
    prefix_cache_tokens: int = 8192  # ... so much of it where the lanes are ...
    host_cache_tokens: int = 0  # ... and so much more in host memory
    stage_cache_tokens: int = 0  # so much KV of finished prompts is kept by each stage
    max_queue: int = 256  # requests that wait
    checksum: str = OFF  # of every blob, one of zpd.sums.CHECKSUMS
    run_dir: str = "runs"
    log_level: str = "info"
    log_bytes: int = 256 * 2**20  # a log file is full; 0: never ...
    log_files: int = 8  # ... and so many of a node are kept
    expose: bool = False  # nodes may bind where other machines can connect; links are plain text
    timeouts: Timeouts = field(default_factory=Timeouts)

    def __post_init__(self) -> None:
        """Raises ConfigError where ``prefetch_next`` cannot work."""
        if self.prefetch_next:
            prefetch.check(self.lanes, self.routing, len(self.stages))

    @property
    def coordinator(self) -> Node:
        return next(n for n in self.nodes if n.role == "coordinator")

    @property
    def decode(self) -> Node:
        return next(n for n in self.nodes if n.role == "decode")

    @property
    def stages(self) -> tuple[Node, ...]:
        """In ring order."""
        return tuple(sorted((n for n in self.nodes if n.role == "prefill"), key=lambda n: n.layers))

    def node(self, name: str) -> Node:
        return next(n for n in self.nodes if n.name == name)

    def links(self, name: str) -> tuple[tuple[str, str], ...]:
        """(peer, link class) of every connection that node ``name`` dials.

        Control: the coordinator to everyone, everyone to the coordinator, stages to the decode
        node. Bulk: along the ring (coordinator, stages, coordinator) and stages to the decode node.
        A front door dials everyone, on control. A node with a role of its own takes no part in
        these: it dials whom it names.
        """
        node = self.node(name)
        if node.role not in ROLES:
            control = ((p, "control") for p in node.peers)
            return (*control, *((p, "bulk") for p in node.bulk_peers))
        c, d, ring = self.coordinator.name, self.decode.name, [s.name for s in self.stages]
        if node.role == "http":
            return tuple((p, "control") for p in (c, d, *ring))
        if name == c:
            return (*((p, "control") for p in (d, *ring)), (ring[0], "bulk"))
        if name == d:
            return ((c, "control"),)
        after = ring[ring.index(name) + 1 :]
        onward = after[0] if after else c
        return ((c, "control"), (d, "control"), (onward, "bulk"), (d, "bulk"))

    def dial_address(self, name: str, peer: str) -> str:
        """Where node ``name`` connects to reach ``peer``: the peer's address, or that of a
        forwarder between them (``via`` of the node that dials)."""
        return self.node(name).via.get(peer, self.node(peer).address)

    def kv_transport(self, stage: Node) -> str:
        """tcp, or shm where the stage may write straight into the decode node's memory."""
        if stage.kv != "auto":
            return stage.kv
        return "shm" if self.same_host(stage, self.decode) else "tcp"

    @staticmethod
    def same_host(a: Node, b: Node) -> bool:
        """As far as a file can say."""
        hosts = {"127.0.0.1" if h == "localhost" else h for h in (_host(a), _host(b))}
        return a.host == b.host and len(hosts) == 1

    def most_ops(self) -> int:
        """Ops that may ever be outstanding."""
        return self.prefill_depth or depth.MOST

    def lane_blocks(self) -> tuple[int, int]:
        """Chunks that the decode node's caches have room for: where the lanes are, on the host."""
        if self.prefix_cache == lanecache.OFF:
            return 0, 0
        return self.prefix_cache_tokens // self.chunk, self.host_cache_tokens // self.chunk

    def stage_blocks(self) -> int:
        """Chunks that each stage's prefix cache has room for."""
        return self.stage_cache_tokens // self.chunk

    def high_water(self) -> int:
        """Messages that one queue must hold: all KV of every source slot, a window of ops, an
        answer of single tokens; twice that, so that a full queue is an alarm."""
        chunks = ceil(self.model.max_tokens / self.chunk) + 2
        answers = self.lanes * self.model.max_tokens
        return 2 * (self.source_slots * chunks + self.most_ops() + answers + self.max_queue)

    def claims(self) -> dict[str, str]:
        """What nodes that each read a file of their own must agree on, by the name of the key: it
        decides bits, sizes of memory and queues, or the order of grants. HELLO compares these."""
        ring = self.stages
        return {
            "layers": " ".join(["0", *(str(s.layers[1]) for s in ring)]),  # where each stage ends
            "dtype": " ".join(n.dtype for n in (*ring, self.decode)),
            "chunk": str(self.chunk),
            "depth": str(self.prefill_depth or "auto"),
            "bytes": str(self.prefill_bytes),
            "packing": self.packing,
            "lanes": str(self.lanes),
            "source_slots": str(self.source_slots),
            "kv_transport": " ".join(self.kv_transport(s) for s in ring),
            "routing": self.routing,
            "prefetch_next": str(self.prefetch_next).lower(),
            "checksum": self.checksum,
            "prefix_cache": self.prefix_cache,
            "[prefill] prefix_cache_tokens": str(self.stage_cache_tokens),
            "name": self.name,
            "topology": self.fingerprint(),  # last, as what it says best is said by a key above
        }

    def limits(self) -> dict[str, int]:
        """What only bounds a request: where files differ, the smallest holds for all."""
        return {"max_tokens": self.model.max_tokens, "max_queue": self.max_queue}

    def fingerprint(self) -> str:
        """Of who is there, and where. Same on every node that reads an equal topology, wherever
        the file and the model's directory lie."""
        said = repr((self.name, [(n.name, n.role, n.address, n.layers) for n in self.nodes]))
        return hashlib.sha256(said.encode()).hexdigest()[:16]


def _host(node: Node) -> str:
    return address.parse(node.address)[0]
