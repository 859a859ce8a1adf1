"""A topology file is either a whole Topology or a ConfigError that names every problem."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zpd.config import NODE, SECTIONS, load, parse
from zpd.confighttp import HTTP
from zpd.configkeys import Problems, allowed
from zpd.errors import ConfigError
from zpd.topology import Http, Timeouts, Topology

CONFIGS = Path(__file__).resolve().parents[2] / "configs"

GOOD = """
[topology]
name = "t"
[model]
name = "toy"
[prefill]
chunk = 16
[decode]
lanes = 1
[queue]
max = 4
[timeouts]
suspect = 5
[[node]]
name = "c"
role = "coordinator"
address = "tcp://127.0.0.1:47000"
[[node]]
name = "a"
role = "prefill"
address = "tcp://127.0.0.1:47001"
[[node]]
name = "b"
role = "prefill"
address = "tcp://127.0.0.1:47002"
[[node]]
name = "d"
role = "decode"
address = "tcp://127.0.0.1:47003"
"""


@pytest.fixture(autouse=True)
def zpd_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZPD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def write(tmp_path: Path, text: str | bytes) -> Path:
    file = tmp_path / "t.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def put_model(home: Path, name: str, config: str) -> None:
    (home / "models" / name).mkdir(parents=True)
    (home / "models" / name / "config.json").write_text(config)


def problems_of(tmp_path: Path, text: str | bytes) -> list[str]:
    with pytest.raises(ConfigError) as e:
        load(write(tmp_path, text))
    return str(e.value).splitlines()


def test_good(tmp_path: Path) -> None:
    t = load(write(tmp_path, GOOD))
    assert t.name == "t"
    assert t.model.layers == 8
    assert [n.layers for n in t.nodes] == [(0, 0), (0, 4), (4, 8), (0, 8)]
    assert t.timeouts == Timeouts(suspect=5.0)
    assert t.chunk == 16
    assert t.max_queue == 4
    assert not t.expose


def swap(old: str, new: str) -> str:
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)


A, B = 'tcp://127.0.0.1:47001"\n', 'tcp://127.0.0.1:47002"\n'

# what the file says, and the parts that one problem line must have
WRONG: dict[str, tuple[str, tuple[str, ...]]] = {
    "unknown table": (GOOD + "[decod]\n", ("[decod]", "did you mean decode?")),
    "unknown key": (
        swap("lanes = 1", "lane = 1"),
        ("[decode] lane = 1", "unknown key, did you mean lanes?"),
    ),
    "unknown node key": (
        swap(A, A + "thread = 2\n"),
        ("node[1].thread = 2", "did you mean threads?"),
    ),
    "a way to nobody": (
        swap(A, A + 'via = { e = "tcp://127.0.0.1:9" }\n'),
        ("node[1].via", "e is no other node", "known are: c, a, b, d"),
    ),
    "a way to itself": (
        swap(A, A + 'via = { a = "tcp://127.0.0.1:9" }\n'),
        ("node[1].via", "a is no other node"),
    ),
    "a way that is no address": (
        swap(A, A + 'via = { b = "127.0.0.1:9" }\n'),
        ("node[1].via", "must be tcp://HOST:PORT"),
    ),
    "key of another table": (
        swap("chunk = 16", "chunk = 16\nlanes = 2"),
        ("[prefill] lanes = 2", "known are: chunk, depth, order, bytes"),
    ),
    "key of the toy": (
        swap('"toy"', '"./m"\nlayers = 4\ntoy_seconds = 0.5'),
        ("[model] toy_seconds = 0.5", "only the model toy"),
    ),
    "prefix cache mode": (
        swap("lanes = 1", 'lanes = 1\nprefix_cache = "inexcat"'),
        ('[decode] prefix_cache = "inexcat"', "off, exact, inexact", "did you mean inexact?"),
    ),
    "prefix cache below a chunk": (
        swap("lanes = 1", 'lanes = 1\nprefix_cache = "exact"\nprefix_cache_tokens = 15'),
        ("[decode] prefix_cache_tokens = 15", "from [prefill] chunk = 16 on"),
    ),
    "host cache below a chunk": (
        swap("lanes = 1", 'lanes = 1\nprefix_cache = "exact"\nhost_cache_tokens = 1'),
        ("[decode] host_cache_tokens = 1", "from [prefill] chunk = 16 on"),
    ),
    "stage cache below a chunk": (
        swap("chunk = 16", "chunk = 16\nprefix_cache_tokens = 9"),
        ("[prefill] prefix_cache_tokens = 9", "from [prefill] chunk = 16 on"),
    ),
    "stage cache beyond a message": (
        swap("chunk = 16", "chunk = 16\nprefix_cache_tokens = 65537"),
        ("[prefill] prefix_cache_tokens = 65537", "to 4096 of them = 65536"),
    ),
    "number as text": (
        swap("chunk = 16", 'chunk = "16"'),
        ('[prefill] chunk = "16"', "must be a whole number from 1 to"),
    ),
    "boolean as number": (
        swap("lanes = 1", "lanes = true"),
        ("[decode] lanes = true", "must be a whole number"),
    ),
    "fraction": (swap("lanes = 1", "lanes = 1.0"), ("[decode] lanes = 1.0", "whole number")),
    "zero": (swap("chunk = 16", "chunk = 0"), ("[prefill] chunk = 0", "from 1 to")),
    "negative": (swap("max = 4", "max = -1"), ("[queue] max = -1", "from 1 to 1000000")),
    "nan": (swap("suspect = 5", "suspect = nan"), ("[timeouts] suspect = NaN", "seconds, from")),
    "infinite": (swap("suspect = 5", "suspect = inf"), ("[timeouts] suspect", "to 86400")),
    "huge": (
        swap("suspect = 5", "suspect = 0x" + "f" * 9999),
        ("[timeouts] suspect = a value too large to show", "seconds, from"),
    ),
    "table as value": (
        "queue = 3\n" + swap("[queue]\nmax = 4\n", ""),
        ("queue = 3", "must be a table: [queue]"),
    ),
    "one bracket": (
        GOOD[: GOOD.index("[[node]]")] + '[node]\nname = "c"\n',
        ("node = ", "must be tables [[node]]"),
    ),
    "no node": (GOOD[: GOOD.index("[[node]]")], ("node: is missing", "[[node]]")),
    "no topology name": (swap('name = "t"\n', ""), ("[topology] name", "is missing", "a-z, 0-9")),
    "no model": (swap('[model]\nname = "toy"\n', ""), ("[model] name", "is missing")),
    "topology name": (swap('"t"', '"T x"'), ('[topology] name = "T x"', "a-z, 0-9 and -")),
    "long name": (swap('name = "a"', f'name = "{"a" * 33}"'), ("node[1].name", "1 to 32 of")),
    "name with #": (swap('name = "a"', 'name = "a#1"'), ('node[1].name = "a#1"', "a-z, 0-9")),
    "same name": (swap('name = "b"', 'name = "a"'), ('node[2].name = "a"', "is node[1]'s already")),
    "same address": (
        swap("47002", "47001"),
        ('node[2].address = "tcp://127.0.0.1:47001"', "is node[1]'s already"),
    ),
    "same address by another name": (
        swap(B, 'tcp://localhost:47001"\n'),
        ("node[2].address", "is node[1]'s already"),
    ),
    "role": (
        swap('role = "decode"', 'role = "decod"'),
        ('node[3].role = "decod"', "one of coordinator, prefill, decode", "did you mean decode?"),
    ),
    "two coordinators": (
        swap('name = "b"\nrole = "prefill"', 'name = "b"\nrole = "coordinator"'),
        ("exactly one node must have role coordinator", "node[0], node[2]"),
    ),
    "no decode": (
        swap('role = "decode"', 'role = "prefill"'),
        ("exactly one node must have role decode", "none has"),
    ),
    "no prefill": (
        GOOD[: GOOD.index('[[node]]\nname = "a"')] + GOOD[GOOD.index('[[node]]\nname = "d"') :],
        ("at least one node must have role prefill", "none has"),
    ),
    "address scheme": (
        swap(A, '127.0.0.1:47001"\n'),
        ('node[1].address = "127.0.0.1:47001"', "must be tcp://HOST:PORT"),
    ),
    "port 0": (swap("47001", "0"), ("node[1].address", "a port from 1 to 65535")),
    "port 65536": (swap("47001", "65536"), ("node[1].address", "a port from 1 to 65535")),
    "no port": (swap(":47001", ""), ("node[1].address", "must be tcp://HOST:PORT")),
    "bad IP": (swap(A, 'tcp://127.0.0.256:1"\n'), ("node[1].address", "no IP address")),
    "any host": (
        swap(A, 'tcp://0.0.0.0:47001"\n'),
        ("node[1].address", "one that peers can connect to"),
    ),
    "exposed": (
        swap(A, 'tcp://10.0.0.1:47001"\n'),
        ('node[1].address = "tcp://10.0.0.1:47001"', "expose = true", "plain text"),
    ),
    "expose": (
        swap('name = "t"', 'name = "t"\nexpose = 1'),
        ("[topology] expose = 1", "must be true or false"),
    ),
    "level": (
        swap('name = "t"', 'name = "t"\nlog_level = "warn"'),
        ('[topology] log_level = "warn"', "debug, info, warning, error", "did you mean warning?"),
    ),
    "dtype": (swap(A, A + 'dtype = "fp32"\n'), ('node[1].dtype = "fp32"', "float32, bfloat16")),
    "device": (swap(A, A + 'device = "gpu"\n'), ('node[1].device = "gpu"', "cuda:N")),
    "threads": (swap(A, A + "threads = 0\n"), ("node[1].threads = 0", "from 1 to 1024")),
    "some layers": (
        swap(A, A + "layers = [0, 4]\n"),
        ("node[2].layers", "is missing, but node[1] has it: all or none"),
    ),
    "layer order": (swap(A, A + "layers = [4, 4]\n"), ("node[1].layers = [4, 4]", "0 <= a < b")),
    "layer type": (swap(A, A + "layers = 4\n"), ("node[1].layers = 4", "must be [a, b]")),
    "layers elsewhere": (
        swap('role = "decode"', 'role = "decode"\nlayers = [0, 8]'),
        ("node[3].layers = [0, 8]", "only prefill nodes"),
    ),
    "chunk over slot": (
        swap('"toy"', '"toy"\nmax_tokens = 8'),
        ("[model] max_tokens = 8", "at least [prefill] chunk = 16"),
    ),
    "window under op": (
        swap("chunk = 16", "chunk = 16\nbytes = 63"),
        ("[prefill] bytes = 63", "at least 4 x [prefill] chunk = 64"),
    ),
    "suspect under heartbeats": (
        swap("suspect = 5", "suspect = 1"),
        ("[timeouts] suspect = 1.0", "at least 3 x [timeouts] heartbeat = 1.5"),
    ),
    "chunk budget under suspect": (
        swap("suspect = 5", "suspect = 5\nchunk = 4"),
        ("[timeouts] chunk = 4.0", "at least [timeouts] suspect = 5"),
    ),
    "request under its waits": (
        swap("suspect = 5", "suspect = 5\nrequest = 200"),
        ("[timeouts] request = 200.0", "at least [timeouts] reserve = 300"),
    ),
    "toy layers too few": (
        swap('"toy"', '"toy"\nlayers = 1'),
        ("2 prefill nodes for 1 layers",),
    ),
    "model not here": (
        swap('"toy"', '"some-model"'),
        ('[model] name = "some-model"', "is not here: run `zpd models pull some-model`"),
    ),
    "no such directory": (swap('"toy"', '"./nowhere"'), ("[model] name", "no such directory")),
    "not TOML": ("[topology\n", ("is not TOML",)),
    "twice": (GOOD + '[topology]\nname = "t"\n', ("is not TOML",)),
    "too deep": ("a = " + "[" * 9999, ("is not TOML",)),
    "long number": ("a = " + "1" * 9999, ("is not TOML",)),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong(case: str, tmp_path: Path) -> None:
    text, parts = WRONG[case]
    lines = problems_of(tmp_path, text)
    assert all(line.startswith(f"{tmp_path}/t.toml: ") for line in lines)
    assert any(all(p in line for p in parts) for line in lines), lines
    assert "Traceback" not in "".join(lines)


LAYERS = {
    "gap": ((0, 3), (4, 8), ("node[2].layers = [4, 8]", "no node has layers [3, 4]")),
    "overlap": ((0, 5), (4, 8), ("node[2].layers = [4, 8]", "overlaps node[1], which ends at 5")),
    "start": ((1, 4), (4, 8), ("node[1].layers = [1, 4]", "no node has layers [0, 1]")),
    "end": ((0, 4), (4, 7), ("no node has layers [7, 8]", "the model has 8")),
    "beyond": ((0, 4), (4, 9), ("node[2].layers = [4, 9]", "the model has 8 layers")),
}


@pytest.mark.parametrize("case", LAYERS)
def test_layers_must_cover_the_model_once(case: str, tmp_path: Path) -> None:
    a, b, parts = LAYERS[case]
    text = swap(A, f"{A}layers = {list(a)}\n").replace(B, f"{B}layers = {list(b)}\n")
    (line,) = problems_of(tmp_path, text)
    assert all(p in line for p in parts), line


def test_every_problem_is_said_at_once(tmp_path: Path) -> None:
    text = swap("chunk = 16", 'chunk = "x"').replace("lanes = 1", "lanes = 0").replace(A, 'x"\n')
    assert len(problems_of(tmp_path, text)) == 3


def test_uneven_layers_and_ring_order(tmp_path: Path) -> None:
    text = swap(A, f"{A}layers = [7, 8]\n").replace(B, f"{B}layers = [0, 7]\n")
    t = load(write(tmp_path, text))
    assert [s.name for s in t.stages] == ["b", "a"]


def test_even_split_of_an_odd_count(tmp_path: Path) -> None:
    t = load(write(tmp_path, swap('"toy"', '"toy"\nlayers = 7')))
    assert [s.layers for s in t.stages] == [(0, 4), (4, 7)]


def test_layer_count_comes_from_the_model(tmp_path: Path, zpd_home: Path) -> None:
    put_model(zpd_home, "m", '{"num_hidden_layers": 30}')
    t = load(write(tmp_path, swap('"toy"', '"m"')))
    assert t.model.layers == 30
    assert [s.layers for s in t.stages] == [(0, 15), (15, 30)]
    local = zpd_home / "models" / "m"
    assert load(write(tmp_path, swap('"toy"', f'"{local}"'))).model.layers == 30


@pytest.mark.parametrize(
    ("config", "part"),
    [
        ("{}", "num_hidden_layers: must be a whole number"),
        ('{"num_hidden_layers": "30"}', "num_hidden_layers: must be a whole number"),
        ("[]", "the file is no JSON object"),
        ("{", "the file is no JSON object"),
    ],
)
def test_damaged_model_config(config: str, part: str, tmp_path: Path, zpd_home: Path) -> None:
    put_model(zpd_home, "m", config)
    (line,) = problems_of(tmp_path, swap('"toy"', '"m"'))
    assert "config.json" in line
    assert part in line


def test_said_layers_must_be_the_models(tmp_path: Path, zpd_home: Path) -> None:
    put_model(zpd_home, "m", '{"num_hidden_layers": 30}')
    (line,) = problems_of(tmp_path, swap('"toy"', '"m"\nlayers = 29'))
    assert "[model] layers = 29" in line
    assert "says 30" in line


def test_said_layers_do_for_a_model_that_is_elsewhere(tmp_path: Path) -> None:
    assert load(write(tmp_path, swap('"toy"', '"m"\nlayers = 30'))).model.layers == 30


def test_exposed_on_purpose(tmp_path: Path) -> None:
    text = swap('name = "t"', 'name = "t"\nexpose = true')
    t = load(write(tmp_path, text.replace(A, 'tcp://[2001:db8::1]:47001"\n')))
    assert t.expose
    assert (
        load(write(tmp_path, swap(A, 'tcp://[::1]:47001"\n'))).node("a").address.endswith("47001")
    )


def test_default_dtype_is_the_models(tmp_path: Path) -> None:
    text = swap('"toy"', '"toy"\ndtype = "bfloat16"').replace(A, f'{A}dtype = "float32"\n')
    t = load(write(tmp_path, text))
    assert [n.dtype for n in t.nodes] == ["bfloat16", "float32", "bfloat16", "bfloat16"]


def test_every_key_of_a_node_reaches_the_topology(tmp_path: Path) -> None:
    """Each with a value that is not its default."""
    stage = {"threads": 3, "device": "cuda:1", "dtype": "bfloat16", "kv": "tcp", "layers": [0, 3]}
    stage["via"] = {"b": "tcp://127.0.0.1:9"}
    own = {"peers": ["a"], "bulk_peers": ["b"], "args": {"x": 1}}
    asked = {"a": stage, "b": {"layers": [3, 8]}, "mine": own}
    text = GOOD + '[[node]]\nname = "mine"\nrole = "m:C"\naddress = "tcp://127.0.0.1:47004"\n'
    for name, values in asked.items():
        lines = "".join(f"{k} = {toml(v)}\n" for k, v in values.items())
        text = text.replace(f'name = "{name}"\n', f'name = "{name}"\n{lines}')
    text = text.replace('address = "', 'host = "h"\naddress = "')
    t = load(write(tmp_path, text))
    keys = {"name", "role", "address", "host", *(k for values in asked.values() for k in values)}
    assert keys == NODE.keys() - {"http"}  # a table of keys of its own
    assert {n.host for n in t.nodes} == {"h"}
    for name, values in asked.items():
        for key, value in values.items():
            assert getattr(t.node(name), key) == frozen(value), key


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {toml(v)}" for k, v in value.items()) + " }"
    return json.dumps(value)


def frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: cannot be read: No such file"):
        load(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)
    with pytest.raises(ConfigError):
        load("a\0b")
    (line,) = problems_of(tmp_path, GOOD.encode() + b"# \xff")
    assert "is not UTF-8" in line
    (line,) = problems_of(tmp_path, b"#" * (2**20 + 1))
    assert "too long" in line


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.toml")), ids=lambda f: f.name)
def test_shipped_configs(file: Path, zpd_home: Path) -> None:
    put_model(zpd_home, "smollm2-135m-instruct", json.dumps({"num_hidden_layers": 30}))
    assert load(file).file == str(file)


def test_the_explained_config_shows_every_key_and_its_default(zpd_home: Path) -> None:
    put_model(zpd_home, "smollm2-135m-instruct", json.dumps({"num_hidden_layers": 30}))
    text = (CONFIGS / "local-2stage.toml").read_text()
    # these have the keys of the toy model alone, of one's own actors, of several hosts, of a door
    for more in ("toy-2stage", "own-actor", "two-hosts", "http"):
        text += (CONFIGS / f"{more}.toml").read_text()
    said = set(re.findall(r"^(?:# )?(\w+) = ", text, re.MULTILINE))
    left_out = {"layers"} if "layers = 30" not in text else set()
    assert said >= {k for keys in (*SECTIONS.values(), NODE) for k in keys} - left_out - {"http"}
    assert said >= HTTP.keys()
    t = load(CONFIGS / "local-2stage.toml")
    bare = Topology(t.name, t.file, t.model, t.nodes)
    assert t == bare


def test_caches(tmp_path: Path) -> None:
    """Whole chunks; off is off whatever its budget says."""
    file = tmp_path / "t.toml"
    budgets = "prefix_cache_tokens = 50\nhost_cache_tokens = 40"
    text = swap("chunk = 16", "chunk = 16\nprefix_cache_tokens = 33")
    for mode, blocks in (("off", (0, 0)), ("exact", (3, 2)), ("inexact", (3, 2))):
        said = f'lanes = 1\nprefix_cache = "{mode}"\n{budgets}'
        file.write_text(text.replace("lanes = 1", said))
        assert (load(file).lane_blocks(), load(file).stage_blocks()) == (blocks, 2)


def test_every_reader_says_what_it_allows() -> None:
    for keys in (*SECTIONS.values(), NODE, HTTP):
        for key in keys.values():
            assert allowed(key.read)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["toy", "prefill", "decode", "tcp://127.0.0.1:1", "tcp://[::]:2", "a/b"]),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=4), v, max_size=3),
    max_leaves=6,
)


def table(keys: dict[str, Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({}, optional=dict.fromkeys(keys, VALUES))


TOMLS = st.fixed_dictionaries(
    {},
    optional={
        **{name: table(keys) | VALUES for name, keys in SECTIONS.items()},
        "node": st.lists(table(NODE), max_size=4) | VALUES,
        "other": VALUES,
    },
)


@settings(deadline=None, max_examples=150)
@given(TOMLS)
def test_any_toml_gives_a_topology_or_a_config_error(data: dict[str, Any]) -> None:
    problems = Problems("f")
    try:
        found = parse(data, problems)
    except ConfigError:
        found = None
    assert isinstance(found, Topology) == (problems.lines == [])


DOOR = (
    GOOD
    + """
[[node]]
name = "http"
role = "http"
address = "tcp://127.0.0.1:47009"
[node.http]
"""
)


def test_every_key_of_a_front_door_reaches_the_topology(tmp_path: Path) -> None:
    said = {
        "listen": "[::1]:0", "model": "m", "api_keys": "env:KEY", "cors": ["https://a.org"],
        "max_body": 2048, "max_pending": 3, "stall": 1.5,
    }  # fmt: skip
    assert said.keys() == HTTP.keys()
    lines = "".join(f"{k} = {toml(v)}\n" for k, v in said.items())
    t = load(write(tmp_path, DOOR + lines))
    assert t.node("http").http == Http(**{**said, "cors": ("https://a.org",)})
    links = t.links("http")
    assert links[0] == (t.coordinator.name, "control")
    assert {p for p, _ in links} == {n.name for n in t.nodes} - {"http"}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('listen = "127.0.0.1"', "http.listen .*HOST:PORT"),
        ('listen = "127.0.0.1:65536"', "http.listen .*HOST:PORT"),
        ('listen = "0.0.0.0:80"', "http.listen .*expose = true"),
        ('api_keys = "sk-123"', "http.api_keys .*file:PATH or env:NAME"),
        ('cors = ["example.org"]', "http.cors .*list of origins"),
        ("max_body = 1", "http.max_body .*from 1024"),
        ("max_pending = 0", "http.max_pending .*from 1"),
        ("port = 80", "http.port .*unknown key"),
    ],
)
def test_a_front_door_is_refused_by_name(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load(write(tmp_path, DOOR + line))


def test_only_a_front_door_has_its_table(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"http: only http nodes have this table"):
        load(write(tmp_path, GOOD + "[node.http]\nmax_pending = 3\n"))
