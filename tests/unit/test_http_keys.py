"""API keys: where they come from, and what is said where there are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodes.http.keys import knows, read_keys
from zpd.errors import UserError


def test_keys_of_a_file_and_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n\n  two \n")
    assert read_keys(f"file:{file}") == (b"one", b"two")
    monkeypatch.setenv("A_KEY", "three")
    assert read_keys("env:A_KEY") == (b"three",)
    assert read_keys("") == ()


@pytest.mark.parametrize("raw", [b"", b"\n", b"\xff", "schl\u00fcssel".encode(), b"a\tb"])
def test_what_is_no_key_is_refused_by_name(tmp_path: Path, raw: bytes) -> None:
    file = tmp_path / "keys"
    file.write_bytes(raw)
    with pytest.raises(UserError, match=r"http\.api_keys = file:"):
        read_keys(f"file:{file}")
    with pytest.raises(UserError, match=r"http\.api_keys = env:"):
        read_keys("env:NOT_SET_ANYWHERE")
    with pytest.raises(UserError, match="cannot be read"):
        read_keys(f"file:{tmp_path / 'nowhere'}")


def test_who_has_a_key() -> None:
    keys = (b"one", b"two")
    assert knows((), b"") and knows(keys, b"Bearer two") and knows(keys, b"bearer one")
    for said in (b"", b"one", b"Bearer", b"Bearer three", b"Basic one", b"Bearer oneone"):
        assert not knows(keys, said)
