"""Fetch a model of a Hugging Face hub, all or nothing (see ``tools.publish``).

Only files that hold data are fetched: JSON, safetensors, a chat template. Weights in any other form
can run code when they are read, and are refused by name. What was fetched is kept until the model
is there, so that a second try goes on.
"""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from nodes.models.directory import CONFIG, TOKENIZER, WEIGHTS, WEIGHTS_INDEX
from nodes.models.spec import read_spec
from tools.publish import Report, Staging, hash_file, publish, tree_size
from zpd.errors import UserError
from zpd.home import home

PREFIX = "hf:"
_REPO = re.compile(r"([A-Za-z0-9][\w.-]*)/([A-Za-z0-9][\w.-]*)(?:@([\w./-]+))?", re.ASCII)
_SMALL = (CONFIG, "tokenizer*.json", "generation_config.json", "chat_template*")
_SHARD = re.compile(r"[\w.-]+\.safetensors", re.ASCII)
_POLL = 0.2  # seconds between two looks at how much has arrived

T = TypeVar("T")


@dataclass(frozen=True)
class Repository:
    """``hf:ORG/NAME`` or ``hf:ORG/NAME@REVISION`` (a branch, a tag or a commit)."""

    organisation: str
    name: str
    revision: str | None

    @staticmethod
    def parse(said: str) -> Repository:
        found = _REPO.fullmatch(said.removeprefix(PREFIX))
        if found is None:
            raise UserError(f"NAME = {said!r}: allowed: hf:ORG/NAME or hf:ORG/NAME@REVISION")
        return Repository(*found.groups())

    def __str__(self) -> str:
        return f"{PREFIX}{self.repo}" + (f"@{self.revision}" if self.revision else "")

    @property
    def repo(self) -> str:
        return f"{self.organisation}/{self.name}"


@dataclass(frozen=True)
class _Listing:
    """One commit of a repository: the files at its top, each with its size and, where the hub
    says it, its SHA-256."""

    repository: Repository
    commit: str
    files: dict[str, tuple[int, str | None]]


def pull_hub(repository: Repository, name: str, report: Report) -> tuple[Path, bool]:
    """(the model's directory, whether it had to be fetched). UserError says why it failed."""
    hub = _library()
    kept: list[Path] = []

    def fill(staging: Staging) -> str:
        listing = _list(hub, repository)
        folder = home() / "downloads" / f"hf--{repository.organisation}--{repository.name}--"
        folder = folder.with_name(folder.name + listing.commit)
        kept.append(folder)
        for file in _fetch_all(hub, listing, folder, report):
            shutil.copyfile(folder / file, staging.model / file)
        return f"{repository} {listing.commit}"

    found = publish(name, f"{repository} ", report, fill)
    for folder in kept:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _library() -> Any:
    try:
        import huggingface_hub.utils
    except ImportError:
        raise UserError(
            "hf: needs the package huggingface_hub, which is not installed: "
            "pip install 'zpd-serve[hub]'"
        ) from None
    hub: Any = huggingface_hub  # it names what it exports in a way that type checkers do not read
    hub.utils.disable_progress_bars()
    return hub


def _list(hub: Any, repository: Repository) -> _Listing:
    info = _ask(
        f"{repository}: cannot be listed",
        lambda: hub.HfApi().model_info(
            repository.repo, revision=repository.revision, files_metadata=True
        ),
    )
    files = {
        file.rfilename: (file.size or 0, file.lfs.sha256 if file.lfs else None)
        for file in info.siblings or ()
        if "/" not in file.rfilename
    }
    return _Listing(repository, str(info.sha), files)


def _fetch_all(hub: Any, listing: _Listing, folder: Path, report: Report) -> list[str]:
    """The names of the model's files, all in ``folder`` now."""
    for needed in (CONFIG, TOKENIZER):
        if needed not in listing.files:
            raise UserError(f"{listing.repository}: has no {needed}")
    weights = WEIGHTS if WEIGHTS in listing.files else WEIGHTS_INDEX
    if weights not in listing.files:
        others = [f for f in listing.files if f.endswith((".bin", ".pt", ".pth", ".pkl", ".ckpt"))]
        has = f" but {', '.join(sorted(others))}, which can run code when it is read" * bool(others)
        raise UserError(
            f"{listing.repository}: has no {WEIGHTS} and no {WEIGHTS_INDEX}{has}; allowed: weights "
            "in the safetensors format"
        )
    small = [f for f in listing.files if any(fnmatch.fnmatch(f, kind) for kind in _SMALL)]
    # The small ones first: they may say that the large ones are of no use.
    _fetch(hub, listing, folder, small, report)
    read_spec(folder)
    large = [weights]
    if weights == WEIGHTS_INDEX:
        _fetch(hub, listing, folder, large, report)
        large += _shards(listing, folder / WEIGHTS_INDEX)
    _fetch(hub, listing, folder, large, report)
    return [*small, *large]


def _shards(listing: _Listing, index: Path) -> list[str]:
    try:
        shards = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise UserError(f"{listing.repository}: {WEIGHTS_INDEX}: has no weight_map") from e
    for shard in shards:
        if not _SHARD.fullmatch(str(shard)) or shard not in listing.files:
            raise UserError(
                f"{listing.repository}: {WEIGHTS_INDEX}: {shard!r}: allowed: safetensors files of "
                "the same repository"
            )
    return shards


def _fetch(hub: Any, listing: _Listing, folder: Path, files: list[str], report: Report) -> None:
    r = listing.repository
    total = sum(listing.files[file][0] for file in files)
    with _watched(folder, total, report):
        for file in files:
            fetch = partial(hub.hf_hub_download, revision=listing.commit, local_dir=folder)
            _ask(f"{r}: {file}: cannot be fetched", partial(fetch, r.repo, file))
    for file in files:
        size, sha256 = listing.files[file]
        if size and (folder / file).stat().st_size != size:
            raise _damaged(r, folder / file, f"{size} bytes")
        if sha256 and hash_file(folder / file, "check", report) != sha256:
            raise _damaged(r, folder / file, f"SHA-256 {sha256}")


def _damaged(repository: Repository, file: Path, allowed: str) -> UserError:
    file.unlink()
    return UserError(f"{repository}: {file.name} came with other content; allowed: {allowed}")


@contextmanager
def _watched(folder: Path, total: int, report: Report) -> Iterator[None]:
    """Reports what arrives in ``folder`` meanwhile."""
    before, over = tree_size(folder), threading.Event()

    def watch() -> None:
        while not over.wait(_POLL):
            report("download", max(0, min(tree_size(folder) - before, total)), total)

    report("download", 0, total)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
    report("download", total, total)


def _ask(what: str, call: Callable[[], T]) -> T:
    try:
        return call()
    except Exception as e:  # the library and what it stands on share no base class
        lines = str(e).strip().splitlines() or [""]
        raise UserError(f"{what}: {type(e).__name__}: {lines[0]}") from e
