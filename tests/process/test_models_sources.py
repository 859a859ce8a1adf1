"""``zpd models convert`` and ``pull hf:``: safe files only, all or nothing, errors by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from nodes.models.checkpoint import Checkpoint
from nodes.models.directory import pulled, resolve
from tests.process.hub import COMMIT, Files, Hub
from tests.tiny_model import weights, write_directory, write_gguf
from tools.hub import Repository, pull_hub
from zpd.errors import UserError

# Runs zpd commands, given as JSON, one after the other; says each one's exit code and stderr.
RUN = """
import contextlib, io, json, sys
from tools.cli import main
done = []
for words in json.loads(sys.argv[1]):
    said, wrong = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(wrong):
        code = main(words)
    done.append([code, said.getvalue(), wrong.getvalue()])
print(json.dumps(done))
"""


def zpd(*commands: Sequence[str], **environment: str) -> list[tuple[int, str, str]]:
    """Of each ``zpd models`` command, its exit code, stdout and stderr."""
    said = json.dumps([["models", *words] for words in commands])
    done = subprocess.run(
        [sys.executable, "-c", RUN, said],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [(code, out, wrong) for code, out, wrong in json.loads(done.stdout)]


def test_a_gguf_file_becomes_a_model(tmp_path: Path, home: Path) -> None:
    file = tmp_path / "Some.Model-Q4.gguf"
    meaning = write_gguf(file)
    words = ("convert", str(file))
    first, second, third = zpd(words, words, (*words, "--name", "mine"))
    assert (first[0], second[0], third[0]) == (0, 0, 0)
    assert "done" in first[1] and "already there" in second[1]
    assert set(pulled()) == {"Some.Model-Q4", "mine"}
    path = resolve("Some.Model-Q4")
    assert path == home / "models" / "Some.Model-Q4"
    assert load_file(path / "model.safetensors").keys() == meaning.keys()


def test_what_cannot_be_converted_is_refused_by_name(tmp_path: Path, home: Path) -> None:
    good, other, bad = (str(tmp_path / f"{name}.gguf") for name in ("good", "other", "bad"))
    write_gguf(Path(good))
    write_gguf(Path(other), pre="qwen2")
    Path(bad).write_bytes(b"GGUF" + bytes(60))
    cases = [
        (("convert", str(tmp_path / "none.gguf")), "none.gguf': no such file"),
        (("convert", bad), "bad.gguf: cannot be read as GGUF"),
        *((("convert", good, "--name", n), f"--name = {n!r}") for n in ("toy", "a/b", "..", "")),
        (("convert", other, "--name", "taken"), "comes from good.gguf"),
        (("pull", "smollm2-135m-instruct", "--name", "x"), "only for a model of a hub"),
    ]
    done, *refused = zpd(("convert", good, "--name", "taken"), *(words for words, _ in cases))
    assert done[0] == 0
    for (code, _, wrong), (words, said) in zip(refused, cases, strict=True):
        assert code == 2, words
        assert said in wrong
    assert set(pulled()) == {"taken"}
    assert {p.name for p in (home / "models").iterdir()} == {"taken", ".taken.lock", ".bad.lock"}


def repository(path: Path) -> Files:
    """The files of the tiny model, and others that are none of ours."""
    write_directory(path)
    (path / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    return files | {
        "README.md": b"# tiny",
        "pytorch_model.bin": b"a pickle",
        "consolidated.safetensors": b"another form of the weights",
        "special_tokens_map.json": b"{}",
        "onnx/model.onnx": b"onnx",
        "original/config.json": b"{}",
    }


@pytest.fixture
def tiny(tmp_path: Path, home: Path) -> Files:
    return repository(tmp_path / "repository")


def pull(hub: Hub, *commands: Sequence[str]) -> list[tuple[int, str, str]]:
    words = [("pull", *command) for command in commands]
    own = {"HF_HOME": os.environ["ZPD_HOME"] + "-hf", "HF_TOKEN": "", "no_proxy": "127.0.0.1"}
    return zpd(*words, HF_ENDPOINT=hub.url, **own)


WANTED = {
    "config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
    "generation_config.json", "model.safetensors",
}  # fmt: skip


def test_a_hubs_model_is_fetched_once_and_only_its_safe_files(tiny: Files, home: Path) -> None:
    path = home / "models" / "tiny"
    with Hub({"org/tiny": tiny}) as hub:
        done, again, other, named = pull(
            hub, ["hf:org/tiny"], ["hf:org/tiny"], ["hf:org/tiny@main"],
            ["hf:org/tiny@main", "--name", "main"],
        )  # fmt: skip
    assert done[0] == 0, done
    assert {p.name for p in path.iterdir()} == WANTED | {"zpd.json"}
    for name in WANTED:
        assert (path / name).read_bytes() == tiny[name]
    manifest = json.loads((path / "zpd.json").read_text())
    assert manifest["source"] == f"hf:org/tiny {COMMIT}"
    assert list((home / "downloads").iterdir()) == []
    assert again[0] == 0 and "already there" in again[1]
    assert other[0] == 2 and f"comes from hf:org/tiny {COMMIT}" in other[2]
    assert named[0] == 0
    assert pulled() == {"main": home / "models" / "main", "tiny": path}
    assert sorted(hub.log) == sorted([*WANTED, *WANTED])


def sharded(files: Files, folder: Path) -> dict[str, str]:
    """Replaces the weights by three shards; the index, by tensor."""
    whole = weights()
    where = {name: f"model-{i % 3}.safetensors" for i, name in enumerate(whole)}
    for file in set(where.values()):
        save_file({n: whole[n] for n in where if where[n] == file}, folder / file)
        files[file] = (folder / file).read_bytes()
    del files["model.safetensors"]
    files["model.safetensors.index.json"] = json.dumps({"weight_map": where}).encode()
    return where


def test_shards_are_those_of_the_index(tiny: Files, tmp_path: Path) -> None:
    where = sharded(tiny, tmp_path)
    evil = ("pytorch_model.bin", "../model-0.safetensors", "model-9.safetensors")
    hub = Hub({"org/tiny": tiny})
    for i, file in enumerate(evil):
        index = {"weight_map": {**where, "model.norm.weight": file}}
        changed = {"model.safetensors.index.json": json.dumps(index).encode()}
        hub.repositories[f"org/evil{i}"] = tiny | changed
    with hub:
        done, *refused = pull(hub, *([f"hf:{name}"] for name in hub.repositories))
    assert done[0] == 0, done
    assert Checkpoint(resolve("tiny")).tensors.keys() == weights().keys()
    assert "consolidated.safetensors" not in hub.log
    for (code, _, wrong), file in zip(refused, evil, strict=True):
        assert code == 2 and f"'{file}': allowed: safetensors files" in wrong
    assert set(pulled()) == {"tiny"}


def test_what_a_hub_does_not_have_is_named(tiny: Files) -> None:
    mamba = {**json.loads(tiny["config.json"]), "architectures": ["Mamba"]}
    cases: list[tuple[dict[str, bytes | None], str]] = [
        ({"config.json": json.dumps(mamba).encode()}, 'architectures = ["Mamba"]: not supported'),
        ({"model.safetensors": None}, "pytorch_model.bin, which can run code"),
        ({"model.safetensors": None, "pytorch_model.bin": None}, "has no model.safetensors"),
        ({"config.json": None}, "has no config.json"),
        ({"tokenizer.json": None}, "has no tokenizer.json"),
        ({"model.safetensors": b"not one"}, "cannot be read as safetensors"),
        ({"tokenizer.json": b"{}"}, "tokenizer.json: cannot be read"),
    ]
    hub = Hub({})
    for i, (changes, _) in enumerate(cases):
        files = {**tiny, **changes}
        hub.repositories[f"org/m{i}"] = {n: c for n, c in files.items() if c is not None}
    bad = ("hf:tiny", "hf:a/b/c", "hf:a/../b", "hf:/b", "hf:a/b@")
    with hub:
        refused = pull(hub, *([f"hf:org/m{i}"] for i in range(len(cases))))
        unknown = pull(hub, ["hf:org/other"], *([name] for name in bad))
    for (code, _, wrong), (_, said) in zip(refused, cases, strict=True):
        assert code == 2 and said in wrong
    assert hub.log.count("model.safetensors") == 2  # nothing large where the small says no
    assert "hf:org/other: cannot be listed: RepositoryNotFoundError" in unknown[0][2]
    for (code, _, wrong), name in zip(unknown[1:], bad, strict=True):
        assert code == 2 and f"NAME = '{name}': allowed: hf:ORG/NAME" in wrong
    assert pulled() == {}


def test_a_file_that_came_damaged_is_refused_and_the_next_try_goes_on(tiny: Files) -> None:
    content = tiny["model.safetensors"]
    with Hub({"org/tiny": tiny}) as hub:
        hub.wrong["model.safetensors"] = content[:-1] + bytes([content[-1] ^ 1])
        ((code, _, wrong),) = pull(hub, ["hf:org/tiny"])
        assert code == 2
        assert "model.safetensors came with other content; allowed: SHA-256" in wrong
        assert pulled() == {}
        hub.wrong.clear()
        hub.log.clear()
        assert pull(hub, ["hf:org/tiny"])[0][0] == 0
        assert hub.log == ["model.safetensors"]


def test_a_hub_that_is_not_there_is_named(home: Path) -> None:
    with Hub({}) as hub:
        pass
    ((code, _, wrong),) = pull(hub, ["hf:org/tiny"])
    assert code == 2 and "hf:org/tiny: cannot be listed: " in wrong


def test_a_missing_extra_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"huggingface_hub.*pip install 'zpd-serve\[hub\]'"):
        pull_hub(Repository.parse("hf:org/tiny"), "tiny", lambda step, done, total: None)
