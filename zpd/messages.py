"""Pure. Room 4: every message that crosses the wire, as a frozen dataclass.

A message is control data only; tensors and long texts travel beside it as *blobs* (see
``zpd.blobs.Blob``), named in each docstring. ``docs/wire.md`` is the authority on who sends what to
whom; ``zpd.wire`` checks every field against the annotations here (an ``int`` is 0 .. 2**63-1).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from zpd.ids import Attempt, Block, Ring, Term, Use
from zpd.requests import Sampling

# ---- session: any node to any node, first on every connection --------------------------------


@dataclass(frozen=True)
class Hello:
    """Dialer -> listener: opens a session. ``facts`` must agree with the listener's own wherever
    both name a key."""

    protocol: int
    role: str
    link: str  # "control" or "bulk"
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Welcome:
    """Listener -> dialer: the session is open. Carries the listener's own facts."""

    protocol: int
    role: str
    facts: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Refused:
    """Listener -> dialer: this session is not, or no longer, accepted."""

    reason: str
    field: str = ""
    mine: str = ""
    yours: str = ""


@dataclass(frozen=True)
class Heartbeat:
    """Both ways on every session. ``work`` must move while ``busy``, or the node is stalled.

    For the offset of clocks (``zpd.clocks``): when it was ``sent``, by the sender's monotonic
    clock; ``echo``: what the last one heard on this session said there, ``held`` seconds before.
    """

    work: int
    busy: bool
    sent: float = 0.0
    echo: float = 0.0
    held: float = 0.0


# ---- reservation: coordinator and decode node, control ---------------------------------------


@dataclass(frozen=True)
class Reserve:
    """C -> D: queue for a source slot, by (priority, arrival). Blob 0: prompt token ids, int32
    [n_prompt]; blob 1: the guide, as in Ask, if there is one."""

    att: Attempt
    ring: Ring
    n_prompt: int
    max_tokens: int
    sampling: Sampling
    eos_ids: tuple[int, ...]
    priority: int = 0


@dataclass(frozen=True)
class Grant:
    """D -> C: the slot is yours, and open for every writer of the ring. ``waited``: seconds that
    the RESERVE stood in the owner's queue. ``cached``: D has the KV of the prompt's tokens
    [0, cached), so that no stage sends it; 0 or whole chunks, and less than the prompt."""

    att: Attempt
    use: Use
    waited: float = 0.0
    cached: int = 0


@dataclass(frozen=True)
class ReserveLane:
    """C -> D: queue for a lane, and prefill the prompt there. Blobs as Reserve's."""

    att: Attempt
    n_prompt: int
    max_tokens: int
    sampling: Sampling
    eos_ids: tuple[int, ...]
    priority: int = 0


@dataclass(frozen=True)
class GrantLane:
    """D -> C: the lane is yours; its prompt is prefilled here. ``waited``: seconds that the
    RESERVE_LANE stood in the owner's queue."""

    att: Attempt
    waited: float = 0.0


@dataclass(frozen=True)
class Release:
    """C -> D: the attempt is over. ``never_sent``: no op of it was or will be sent."""

    att: Attempt
    reason: str
    never_sent: bool


@dataclass(frozen=True)
class Ended:
    """D -> C: the owner released or refused the attempt by itself."""

    att: Attempt
    reason: str
    detail: str = ""


@dataclass(frozen=True)
class Token:
    """D -> C: tokens of a live attempt. ``index`` counts answer tokens from 0. ``finish`` is empty
    until the last one. ``spans`` (seconds on D's clock, measured from the grant) come with index
    0: kv (all of it landed), lane (the import starts; only where it had to wait for its lane),
    import_end (it is in a lane), sampled (the first token is chosen). Where D prefilled the prompt:
    turn (its first chunk begins), prefilled, sampled.

    Blobs, where the request asks for log-probabilities of k tokens: the values, float32
    [len(ids), 1 + k], and whose they are, int32 [len(ids), 1 + k]; column 0 is the chosen token,
    the others are the likeliest, in order."""

    att: Attempt
    index: int
    ids: tuple[int, ...]
    finish: str = ""
    spans: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Loaded:
    """D -> C: the model is loaded, so D can prefill prompts, whatever the ring does. Only where
    [decode] routing is not "remote"."""


# ---- ring: coordinator -> stages -> coordinator, bulk ----------------------------------------


@dataclass(frozen=True)
class Open:
    """Around the ring: a new term. Older terms are refused from here on."""

    ring: Ring
    owner: int  # the decode node's incarnation


@dataclass(frozen=True)
class Prefill:
    """Around the ring: one op, the chunk [start, stop) of one prompt.

    Blob 0: token ids int32 [n] (to the head) or activations [n, hidden] (between stages); none
    where ``skip`` is set. ``skip`` is "" or why the op is not computed ("cancelled", or the name of
    the node that failed and its error). ``spans``: per stage passed so far, seconds waited and
    seconds computed, in ring order. ``cached`` as in Grant. ``restore``, in a prompt's first op
    only: the blocks that hold its KV [0, start), one for each chunk; each stage copies them into
    its row, and sends D of it what D lacks. ``more``: the op behind it is of the same pack, all of
    which a stage computes at once; each has its own prompt, its own KV and its own reply.
    """

    ring: Ring
    use: Use
    att: Attempt
    seq: int
    start: int
    stop: int
    last: bool
    skip: str = ""
    spans: tuple[float, ...] = ()
    cached: int = 0
    restore: tuple[Block, ...] = ()
    more: bool = False


@dataclass(frozen=True)
class Reply:
    """Tail -> C: one op went around. Echoes the op."""

    ring: Ring
    use: Use
    att: Attempt
    seq: int
    start: int
    stop: int
    last: bool
    skip: str = ""
    spans: tuple[float, ...] = ()


@dataclass(frozen=True)
class Close:
    """Around the ring, behind the job's ops: no op of this use follows. Each stage keeps the whole
    chunks of its row from position ``first`` on in the blocks ``keep``, for later requests."""

    ring: Ring
    use: Use
    first: int = 0
    keep: tuple[Block, ...] = ()


@dataclass(frozen=True)
class Skip:
    """C -> head, control: a hint that the ops of this use need not be computed. Head -> ... ->
    tail, bulk: the same of those that have left it already."""

    use: Use


@dataclass(frozen=True)
class LinkState:
    """Stage -> C, control: my bulk link to ``peer`` broke, or is up.
    D -> C, control: ``peer`` or its KV link is lost to me; I grant nothing before a new term."""

    peer: str
    up: bool
    reason: str


# ---- KV: stage -> decode node, bulk ----------------------------------------------------------


@dataclass(frozen=True)
class Kv:
    """One chunk's KV of one stage. Blobs: k and v, each [layers, kv_heads, n, head_dim], or neither
    where the stage has written them to the memory that ``use`` names; the tail's last chunk adds
    the last position's hidden state [1, hidden]."""

    use: Use
    term: Term
    writer: str
    first_layer: int
    last_layer: int  # half-open
    start: int
    stop: int


@dataclass(frozen=True)
class End:
    """This writer's end mark for the use, in band behind all its KV."""

    use: Use
    term: Term
    writer: str


@dataclass(frozen=True)
class Opened:
    """Stage -> D, bulk: the writer's end mark for every use of terms older than ``term``.
    D -> C, control: every writer's OPENED for the term is here, and D is loaded."""

    term: Term
    writer: str


# ---- clients: client <-> coordinator, control ------------------------------------------------


@dataclass(frozen=True)
class Ask:
    """Client -> C. Blob 0, uint8 (UTF-8): ``kind`` "raw": the prompt text; "chat": a JSON list of
    {"role", "content"}; "ids": a JSON list of token ids. ``label`` is the client's name for the
    request, only ever shown. Blob 1, uint8 (UTF-8), where the answer must have a form: the *guide*,
    a JSON object {"kind", "value"}; see ``nodes.guide``."""

    label: str
    kind: str
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...] = ()
    timeout: float = 0.0  # seconds; 0: the configured one
    priority: int = 0  # 0 to 7; of those that wait, the lowest goes first


@dataclass(frozen=True)
class Accepted:
    """C -> client: the request has a uid and waits. ``asked``: when the Ask came; ``sent``: when
    this left, both in seconds on C's clock; see ``zpd.asked``."""

    label: str
    uid: str
    n_prompt: int
    asked: float = 0.0
    sent: float = 0.0


@dataclass(frozen=True)
class Delta:
    """C -> client: more of the answer. Blobs as Token's, of these ids."""

    uid: str
    text: str
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Done:
    """C -> client: the one terminal answer. ``outcome`` is a zpd.errors.Outcome."""

    label: str
    uid: str
    outcome: str
    detail: str
    n_prompt: int
    n_tokens: int
    spans: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Cancel:
    """Client -> C."""

    uid: str


@dataclass(frozen=True)
class StatusAsk:
    """Client or node -> any node."""


@dataclass(frozen=True)
class Status:
    """Node -> who asked. Blob 0, uint8: a JSON object; ``ready``: the whole path serves."""

    ready: bool
    why: str


# ---- actors of one's own: anybody -> a node whose role is module:Class -----------------------


@dataclass(frozen=True)
class Note:
    """Anybody -> an actor of one's own, control or bulk. What ``topic``, ``fields`` and up to eight
    blobs mean is the receiver's business; the nodes that serve a model refuse it."""

    topic: str
    fields: dict[str, str] = field(default_factory=dict)


MESSAGES: tuple[type, ...] = (
    Hello, Welcome, Refused, Heartbeat,
    Reserve, Grant, ReserveLane, GrantLane, Release, Ended, Token, Loaded,
    Open, Prefill, Reply, Close, Skip, LinkState,
    Kv, End, Opened,
    Ask, Accepted, Delta, Done, Cancel, StatusAsk, Status,
    Note,
)  # fmt: skip

Message = (
    Hello | Welcome | Refused | Heartbeat
    | Reserve | Grant | ReserveLane | GrantLane | Release | Ended | Token | Loaded
    | Open | Prefill | Reply | Close | Skip | LinkState
    | Kv | End | Opened
    | Ask | Accepted | Delta | Done | Cancel | StatusAsk | Status
    | Note
)  # fmt: skip
