"""A made-up model, small enough for every test: its tokenizer, its directory, its GGUF file."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from nodes.models.catalogue import Entry, Wheel

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
MERGES = (
    ("h", "e"),
    ("l", "l"),
    ("he", "ll"),
    ("hell", "o"),
    ("Ġ", "hello"),
    ("ì", "ķ"),
    ("ð", "Ł"),
)
HIDDEN, WIDE, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 64, 96, 2, 4, 2, 16

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": len(SPECIAL) + 256 + len(MERGES),
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tokens() -> list[str]:
    """Special tokens, the byte alphabet, the merged ones; each one's place is its id."""
    return [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *("".join(m) for m in MERGES)]


def tokenizer() -> Tokenizer:
    made = Tokenizer(BPE({token: i for i, token in enumerate(tokens())}, list(MERGES)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    return made


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    """float32, named as in a checkpoint."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (CONFIG["vocab_size"], HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        shapes |= {
            layer + "input_layernorm.weight": (HIDDEN,),
            layer + "self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
            layer + "self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            layer + "self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            layer + "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            layer + "post_attention_layernorm.weight": (HIDDEN,),
            layer + "mlp.gate_proj.weight": (WIDE, HIDDEN),
            layer + "mlp.up_proj.weight": (WIDE, HIDDEN),
            layer + "mlp.down_proj.weight": (HIDDEN, WIDE),
        }
    return {
        name: rng.standard_normal(shape, dtype=np.float32) * np.float32(0.1)
        for name, shape in shapes.items()
    }


def write_config(path: Path, **changes: Any) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({**CONFIG, **changes}))


def write_directory(path: Path) -> Path:
    """The whole model, in the Hugging Face format."""
    write_config(path)
    tokenizer().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (path / "chat_template.jinja").write_text(TEMPLATE)
    save_file(weights(), path / "model.safetensors", metadata={"format": "pt"})
    return path


def write_gguf(path: Path, pre: str = "smollm") -> dict[str, np.ndarray]:
    """The model as a GGUF file. Matrices are Q4_1, with each head's rows of q and k in pairs.

    Returns what the quantised matrices mean, in the checkpoint's names and order of rows.
    """
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(WIDE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens())
    writer.add_token_types([3] * len(SPECIAL) + [1] * (CONFIG["vocab_size"] - len(SPECIAL)))
    writer.add_token_merges([" ".join(merge) for merge in MERGES])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    names = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm",
        "model.layers": "blk", "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }  # fmt: skip
    meaning = {}
    for name, values in weights().items():
        theirs = name
        for ours, other in names.items():
            theirs = theirs.replace(ours, other)
        if values.ndim == 1:
            writer.add_tensor(theirs, values)
            meaning[name] = values
            continue
        heads = {"q": HEADS, "k": KV_HEADS}.get(theirs.split("attn_")[-1][0], 0)
        stored = paired(values, heads) if "attn_q" in theirs or "attn_k" in theirs else values
        packed = gguf.quantize(stored, gguf.GGMLQuantizationType.Q4_1)
        writer.add_tensor(theirs, packed, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
        # a row is quantised by itself, so the order of rows does not change what it means
        meaning[name] = gguf.dequantize(
            gguf.quantize(values, gguf.GGMLQuantizationType.Q4_1), gguf.GGMLQuantizationType.Q4_1
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meaning


def paired(values: np.ndarray, heads: int) -> np.ndarray:
    """Row i and row i + half of each head become neighbours."""
    rows = []
    size = len(values) // heads
    for head in range(heads):
        for i in range(size // 2):
            rows += [values[head * size + i], values[head * size + i + size // 2]]
    return np.stack(rows)


def write_wheels(folder: Path, parts: int = 1) -> Entry:
    """Wheels that hold the GGUF file in parts, where pip finds them; its entry for the
    catalogue."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "tiny.gguf"
    write_gguf(source)
    content = source.read_bytes()
    source.unlink()
    size = -(-len(content) // parts)
    wheels = tuple(
        _write_wheel(folder, i, content[i * size : (i + 1) * size]) for i in range(parts)
    )
    return Entry("tiny", wheels, hashlib.sha256(content).hexdigest())


def _write_wheel(folder: Path, part: int, content: bytes) -> Wheel:
    package = f"zpd_tiny_model{part}"
    wheel = folder / f"{package}-1.0-py3-none-any.whl"
    info, name = f"{package}-1.0.dist-info", package.replace("_", "-")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{package}/tiny.gguf", content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return Wheel(
        package=name,
        version="1.0",
        file=wheel.name,
        size=wheel.stat().st_size,
        sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member=f"{package}/tiny.gguf",
    )
