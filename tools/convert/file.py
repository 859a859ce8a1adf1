"""A GGUF file on this machine -> a pulled model, all or nothing (see ``tools.publish``)."""

from __future__ import annotations

from pathlib import Path

from tools.convert.model import convert
from tools.publish import Report, Staging, hash_file, publish
from zpd.errors import UserError


def convert_file(file: Path, name: str, report: Report) -> tuple[Path, bool]:
    """(the model's directory, whether it had to be made). UserError says what is not supported."""
    if not file.is_file():
        raise UserError(f"FILE = {str(file)!r}: no such file; allowed: a GGUF file")
    source = f"{file.name} {hash_file(file, 'check', report)}"

    def fill(staging: Staging) -> str:
        convert(file, staging.model, lambda done, total: report("convert", done, total))
        return source

    return publish(name, source, report, fill)
