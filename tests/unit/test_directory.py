"""A model's name -> its directory, or a complaint that says what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodes.models.directory import File, Manifest, pulled, resolve
from tests.tiny_model import write_directory
from zpd.errors import UserError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZPD_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def put(home: Path, name: str) -> Path:
    """As a pull would have left it."""
    path = write_directory(home / "models" / name)
    files = {f.name: File(f.stat().st_size, "") for f in path.iterdir()}
    Manifest(name, "made here", files).write(path)
    return path


def test_a_pulled_model_is_found_by_name(home: Path) -> None:
    paths = {name: put(home, name) for name in ("b", "a")}
    (home / "models" / ".a.staging-1").mkdir()
    assert list(pulled()) == ["a", "b"]
    assert pulled() == paths
    assert resolve("a") == paths["a"]


def test_any_local_directory_is_a_model(home: Path, tmp_path: Path) -> None:
    path = write_directory(tmp_path / "mine")
    assert resolve(str(path)) == path
    assert resolve("mine") == path
    assert resolve("./mine") == path


def test_a_pulled_model_goes_before_a_directory_of_that_name(home: Path, tmp_path: Path) -> None:
    write_directory(tmp_path / "same")
    path = put(home, "same")
    assert resolve("same") == path


@pytest.mark.parametrize("name", ["nothing", "../x", "toy", "smollm2-135m-instruct"])
def test_what_is_not_there_is_named_with_what_is_allowed(home: Path, name: str) -> None:
    put(home, "tiny")
    with pytest.raises(UserError) as refused:
        resolve(name)
    said = str(refused.value)
    assert f"model = {name!r}" in said
    assert "a pulled model (tiny)" in said
    assert ("zpd models pull" in said) == name.startswith("smollm2")


@pytest.mark.parametrize("lacking", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_directory_that_lacks_a_file_is_refused(home: Path, tmp_path: Path, lacking: str) -> None:
    path = write_directory(tmp_path / "mine")
    (path / lacking).unlink()
    with pytest.raises(UserError, match=f"has no {lacking}"):
        resolve("mine")
