"""``zpd check``: what can be known before anything loads, said by file and key."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodes.models.spec import read_spec
from tools.check import _shared_memory, check, host_memory
from tools.cli import main
from tools.plan import Need, layer_params, need, queues, shared
from zpd.config import load
from zpd.depth import MOST
from zpd.errors import ConfigError
from zpd.layers import TOY_LAYERS

ROOT = Path(__file__).resolve().parents[2]
TOY = ROOT / "configs" / "toy-2stage.toml"

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}

CONFIG = """
[topology]
name = "t"
[model]
name = "{model}"
max_tokens = {max_tokens}
[prefill]
chunk = 16
[decode]
lanes = 2
source_slots = 3
[[node]]
name = "c"
role = "coordinator"
address = "tcp://127.0.0.1:1"
[[node]]
name = "a"
role = "prefill"
address = "tcp://127.0.0.1:2"
[[node]]
name = "b"
role = "prefill"
address = "tcp://127.0.0.1:3"
dtype = "bfloat16"
[[node]]
name = "d"
role = "decode"
address = "tcp://127.0.0.1:4"
"""


@pytest.fixture(autouse=True)
def zpd_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZPD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def put(tmp_path: Path, max_tokens: int = 100, **changed: Any) -> Path:
    """A local model directory without weights' bytes, and a topology that names it."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(LLAMA | changed))
    for name in ("tokenizer.json", "model.safetensors"):
        (model / name).write_text("{}")
    file = tmp_path / "t.toml"
    file.write_text(CONFIG.format(model=model, max_tokens=max_tokens))
    return file


def test_toy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(TOY)]) == 0
    out = capsys.readouterr().out
    for part in ("stage-0", "tcp://127.0.0.1:27023", "[4, 8)", "66 messages on a ring link"):
        assert part in out
    assert TOY_LAYERS == 8


def test_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(put(tmp_path))]) == 0
    assert "[2, 3)" in capsys.readouterr().out


def test_routes_whose_plans_differ_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """R29: with cost routing the bits of an answer may depend on who prefilled."""
    file = put(tmp_path)
    for routing, said in (("cost", 1), ("local", 0), ("remote", 0)):
        text = CONFIG.format(model=tmp_path / "model", max_tokens=100)
        file.write_text(text.replace("lanes = 2", f'lanes = 2\nrouting = "{routing}"'))
        assert main(["check", str(file)]) == 0
        out = capsys.readouterr().out
        lines = [line for line in out.splitlines() if "other bits" in line]
        assert len(lines) == said
        assert all(f'{file}: [decode] routing = "cost": b and d have dtype' in x for x in lines)
        assert (f", routing {routing}" in out) == (routing != "remote")


def test_needs(tmp_path: Path) -> None:
    topology = load(put(tmp_path))
    spec = read_spec(tmp_path / "model")
    # q and o: 8 x 8; k and v: 8 x 4; gate, up, down: 8 x 16; two norms of 8
    assert layer_params(spec) == 2 * 64 + 2 * 32 + 3 * 128 + 16
    layer, row = layer_params(spec), 2 * 2 * 2 * 100  # k and v, heads, head_dim, tokens
    assert need(topology, topology.coordinator, spec) == Need()
    assert need(topology, topology.node("a"), spec) == Need(4 * (2 * layer + 800), 4 * 3 * row * 2)
    assert need(topology, topology.node("b"), spec) == Need(2 * layer, 2 * 3 * row)
    everything = Need(4 * (3 * layer + 800 + 8), 4 * 5 * row * 3)
    assert need(topology, topology.decode, spec) == everything
    assert queues(topology).ring == MOST + (3 - 1) + 3 + 1
    assert queues(topology).kv == 3 * (7 + 1) + 1


def test_needs_of_prefix_caches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole chunks of 16 tokens: 3 and 2 at the decode node, 2 at each stage."""
    file = put(tmp_path)
    without = load(file)
    text = file.read_text().replace("chunk = 16", "chunk = 16\nprefix_cache_tokens = 40")
    caches = 'prefix_cache = "exact"\nprefix_cache_tokens = 50\nhost_cache_tokens = 32'
    file.write_text(text.replace("lanes = 2", f"lanes = 2\n{caches}"))
    topology, spec = load(file), read_spec(tmp_path / "model")
    token = 2 * 2 * 2  # k and v, heads, head_dim; of one layer
    for name, more in (("a", 4 * 32 * token * 2), ("b", 2 * 32 * token), ("d", 4 * 80 * token * 3)):
        before = need(without, without.node(name), spec)
        after = need(topology, topology.node(name), spec)
        assert (after.weights, after.kv - before.kv) == (before.weights, more)
    assert main(["check", str(file)]) == 0
    said = "prefix cache exact: the decode node keeps 48 tokens and, in host memory, 32; each stage"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changed", "parts"),
    [
        ({"max_tokens": 4097}, ("[model] max_tokens = 4097", "at most 4096")),
        ({"architectures": ["Other"]}, ("[model] name", "architectures", "LlamaForCausalLM")),
        ({"strange_key": 1}, ("[model] name", "strange_key")),
        ({"vocab_size": 2**31 - 1, "hidden_size": 2**18}, ("need about", "MiB for weights and KV")),
    ],
)
def test_problems(changed: dict[str, Any], parts: tuple[str, ...], tmp_path: Path) -> None:
    topology = load(put(tmp_path, **changed))
    with pytest.raises(ConfigError) as e:
        check(topology)
    (line,) = str(e.value).splitlines()
    assert line.startswith(f"{tmp_path}/t.toml: ")
    assert all(p in line for p in parts), line


def test_no_tokenizer(tmp_path: Path) -> None:
    topology = load(put(tmp_path))
    (tmp_path / "model" / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"no tokenizer\.json"):
        check(topology)


def test_every_problem_on_a_line_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.toml"
    file.write_text(CONFIG.format(model="no-such-model", max_tokens=0))
    assert main(["check", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "[model] max_tokens = 0" in err.splitlines()[0]
    assert "run `zpd models pull no-such-model`" in err.splitlines()[1]


def test_host_memory(tmp_path: Path) -> None:
    machine = host_memory(tmp_path / "missing")
    limit = tmp_path / "memory.max"
    limit.write_text("max\n")
    assert host_memory(limit) == machine
    limit.write_text("4096\n")
    assert host_memory(limit) == 4096


def test_neither_torch_nor_sockets_are_imported() -> None:
    code = (
        "import sys; from tools.cli import main; "
        f"code = main(['check', {str(TOY)!r}]); "
        "sys.exit(code or sorted({'torch', 'zmq', 'transformers'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["nodes", "tools"])
def test_a_foreign_package_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    code = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; "
        "from zpd.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"zpd: package {name} on sys.path: {tmp_path}/{name} comes first")


def test_our_own_packages_are_fine() -> None:
    command = [sys.executable, "-m", "zpd", "check", str(TOY)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_memory_that_stages_must_share_fits_the_host(tmp_path: Path) -> None:
    topology = load(put(tmp_path))
    spec = read_spec(tmp_path / "model")
    made = replace(topology, nodes=tuple(
        replace(n, kv="shm") if n.role == "prefill" else n for n in topology.nodes
    ))  # fmt: skip
    needs = shared(made, spec)
    assert needs == made.source_slots * made.model.max_tokens * 3 * 2 * 2 * 2 * 4
    assert _shared_memory(made, spec, needs) == []
    (line,) = _shared_memory(made, spec, needs - 1)
    assert 'kv = "shm" of ' in line and "must be auto or tcp" in line
    assert _shared_memory(topology, spec, 0) == [], "auto finds its way"
