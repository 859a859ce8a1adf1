"""Only the asked tensors' bytes are read, from one file or from shards; damage is named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from nodes.models.checkpoint import Checkpoint, fingerprint, shards, tokenizer_fingerprint
from tests.tiny_model import write_config, write_directory
from zpd.errors import UserError

TENSORS = {
    "layers.0.w": torch.randn(8, 16, generator=torch.manual_seed(1)),
    "layers.1.w": torch.randn(16, 4, generator=torch.manual_seed(2)).to(torch.bfloat16),
    "layers.2.w": torch.randn(3, 5, 7, generator=torch.manual_seed(3)).to(torch.float16),
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 4),
}


@pytest.fixture
def single(tmp_path: Path) -> Path:
    path = tmp_path / "single"
    write_config(path)
    save_file(TENSORS, path / "model.safetensors")
    return path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    path = tmp_path / "sharded"
    write_config(path)
    where = {}
    for i, (name, tensor) in enumerate(TENSORS.items()):
        where[name] = f"model-{i}.safetensors"
        save_file({name: tensor}, path / where[name])
    index = {"metadata": {"total_size": 0}, "weight_map": where}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


@pytest.mark.parametrize("form", ["single", "sharded"])
def test_every_tensor_comes_back_bit_for_bit(form: str, request: pytest.FixtureRequest) -> None:
    checkpoint = Checkpoint(request.getfixturevalue(form))
    assert set(checkpoint.tensors) == set(TENSORS)
    for name, tensor in TENSORS.items():
        read = checkpoint.read(name)
        assert read.dtype == tensor.dtype
        assert read.shape == tensor.shape == checkpoint.info(name).shape
        assert torch.equal(read, tensor)
        assert read.is_contiguous()


def test_only_the_asked_bytes_are_read(single: Path) -> None:
    checkpoint = Checkpoint(single)
    assert checkpoint.bytes_read == 0
    checkpoint.read("layers.1.w")
    assert checkpoint.bytes_read == 16 * 4 * 2


def test_the_kernel_too_saw_only_those_bytes(tmp_path: Path) -> None:
    """The file is 64 MiB, a stage's part 1 MiB: the process's own counter of bytes that it read
    stays near that, and so does its memory."""
    one = 2**18
    save_file({f"w{i}": torch.full((one,), float(i)) for i in range(64)},
              tmp_path / "model.safetensors")  # fmt: skip
    code = """
import resource, sys, torch
from pathlib import Path
from nodes.models.checkpoint import Checkpoint
def said(file, key):
    return int(next(l for l in open(f"/proc/self/{file}") if l.startswith(key)).split()[1])
read, held = said("io", "rchar"), said("status", "VmRSS")
tensor = Checkpoint(Path(sys.argv[1])).read("w63")
assert tensor.shape == (2**18,) and bool((tensor == 63).all())
print(said("io", "rchar") - read, said("status", "VmRSS") - held)
"""
    out = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    read, held = map(int, out.stdout.split())
    assert 4 * one <= read < 4 * one + 2**18  # bytes: the data, headers, /proc itself
    assert held < 16 * 2**10  # KiB


def test_a_tensor_that_is_not_there_is_named(single: Path) -> None:
    with pytest.raises(UserError, match="has no tensor lm_head"):
        Checkpoint(single).read("lm_head")


def test_damage_is_named(single: Path, sharded: Path) -> None:
    file = single / "model.safetensors"
    whole = file.read_bytes()
    for damaged in (b"", b"\x00", whole[:100], whole[:-1], whole + b"\x00",
                    b"\xff" * 8 + whole[8:]):  # fmt: skip
        file.write_bytes(damaged)
        with pytest.raises(UserError, match=r"model\.safetensors"):
            Checkpoint(single)
    (sharded / "model-2.safetensors").unlink()
    with pytest.raises(UserError, match=r"model-2\.safetensors: no such file"):
        Checkpoint(sharded)


def test_a_file_cut_short_behind_our_back_is_named(single: Path) -> None:
    checkpoint = Checkpoint(single)
    (single / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError, match=r"ends inside layers\.0\.w"):
        checkpoint.read("layers.0.w")


def test_a_wrong_index_is_named(sharded: Path) -> None:
    index = sharded / "model.safetensors.index.json"
    where = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": {**where, "extra": "model-0.safetensors"}}))
    with pytest.raises(UserError, match="extra: no shard holds it"):
        Checkpoint(sharded)
    index.write_text(json.dumps({"weight_map": {"w": "../single/model.safetensors"}}))
    with pytest.raises(UserError, match="no such file beside it"):
        shards(sharded)
    for text in ("[]", "{}", '{"weight_map": []}', "x"):
        index.write_text(text)
        with pytest.raises(UserError, match="weight_map"):
            shards(sharded)


def test_a_dtype_that_nodes_cannot_use_is_refused(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(4, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match="w: dtype I8: not supported; allowed: F32, BF16, F16"):
        Checkpoint(tmp_path)


def test_fingerprints_follow_content_and_not_place(tmp_path: Path) -> None:
    ours = write_directory(tmp_path / "a")
    copy = tmp_path / "b"
    shutil.copytree(ours, copy)
    assert fingerprint(ours) == fingerprint(copy)
    assert tokenizer_fingerprint(ours) == tokenizer_fingerprint(copy)
    tokenizer_before = tokenizer_fingerprint(copy)
    seen = {fingerprint(copy)}
    write_config(copy, rope_theta=2e4)
    seen.add(fingerprint(copy))
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    seen.add(fingerprint(copy))
    assert len(seen) == 3
    assert tokenizer_fingerprint(copy) == tokenizer_before
    (copy / "chat_template.jinja").write_text("other")
    assert tokenizer_fingerprint(copy) != tokenizer_before


def test_fingerprints_need_no_torch(tmp_path: Path) -> None:
    path = write_directory(tmp_path / "a")
    code = (
        "import sys; from pathlib import Path\n"
        "from nodes.models.checkpoint import Checkpoint, fingerprint, tokenizer_fingerprint\n"
        "p = Path(sys.argv[1]); Checkpoint(p); fingerprint(p); tokenizer_fingerprint(p)\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
