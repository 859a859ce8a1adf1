"""Makes a model appear among the pulled ones, whole or not at all, wherever it comes from.

Everything happens in a staging directory beside the models; the model appears by one rename at the
end. So an interrupted command leaves a staging directory, which the next one removes, and never
half a model. One command for a name runs at a time: the others wait on an OS lock, which ends with
its process and those that it started.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nodes.models.checkpoint import Checkpoint
from nodes.models.directory import MANIFEST, File, Manifest, complete, source_of
from nodes.models.spec import read_spec
from nodes.text import TokenizerText
from zpd.errors import UserError
from zpd.home import models_home

# report(step, done, total). Steps: wait (for another command), download, check, unpack, convert,
# hash, publish. Counts are bytes, but tensors while converting.
Report = Callable[[str, int, int], None]

_PIECE = 2**20


@dataclass(frozen=True)
class Staging:
    """Room for one command. ``model`` becomes the model's directory. ``lock``: the descriptor that
    holds the lock; a process that inherits it keeps the others waiting."""

    root: Path
    model: Path
    lock: int


def publish(
    name: str, origin: str, report: Report, fill: Callable[[Staging], str]
) -> tuple[Path, bool]:
    """(the model's directory, whether it had to be made).

    ``fill`` puts every file into ``staging.model`` and returns the manifest's source, which begins
    with ``origin``. UserError where a model of that name from elsewhere is there.
    """
    target = models_home() / name
    models_home().mkdir(parents=True, exist_ok=True)
    with _lock(models_home() / f".{name}.lock", report) as lock:
        for left in models_home().glob(f".{name}.staging-*"):
            shutil.rmtree(left)
        if complete(target):
            if not source_of(target).startswith(origin):
                raise UserError(
                    f"NAME = {name!r}: {target} comes from {source_of(target)}; allowed: another "
                    "NAME, or this one once that directory is removed"
                )
            return target, False
        root = Path(tempfile.mkdtemp(prefix=f".{name}.staging-", dir=models_home()))
        try:
            staging = Staging(root, root / "model", lock)
            staging.model.mkdir()
            source = fill(staging)
            _check(staging.model)
            _seal(staging.model, name, source, report)
            report("publish", 0, 1)
            if target.exists():
                target.rename(root / "old")
            staging.model.rename(target)
            _sync(models_home())
            report("publish", 1, 1)
        finally:
            shutil.rmtree(root, ignore_errors=True)
    return target, True


def hash_file(path: Path, step: str, report: Report) -> str:
    """SHA-256, hex."""
    digest, total, done = hashlib.sha256(), path.stat().st_size, 0
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            done += len(piece)
            report(step, done, total)
    return digest.hexdigest()


def tree_size(path: Path) -> int:
    """Bytes below ``path``, while others add and remove files there."""
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                total += os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total


@contextmanager
def _lock(file: Path, report: Report) -> Iterator[int]:
    """The file descriptor that holds the lock."""
    with open(file, "w", encoding="utf-8") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("wait", 0, 1)
            fcntl.flock(held, fcntl.LOCK_EX)
        yield held.fileno()


def _check(model: Path) -> None:
    """UserError where nodes could not use it."""
    spec, checkpoint = read_spec(model), Checkpoint(model)
    if not checkpoint.tensors:
        raise UserError(f"{model}: a {spec.architecture} without weights")
    TokenizerText(model).close()


def _seal(model: Path, name: str, source: str, report: Report) -> None:
    """Everything on the disk, then the manifest."""
    files = {}
    for path in sorted(model.iterdir()):
        path.chmod(0o644)
        files[path.name] = File(path.stat().st_size, hash_file(path, "hash", report))
        _sync(path)
    Manifest(name, source, files).write(model)
    _sync(model / MANIFEST)
    _sync(model)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
