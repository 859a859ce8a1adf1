"""``bundle -o FILE.tar.gz``: what a bug report needs: logs, the topology file, stderr, versions.

Texts are left out unless asked for: what a client called a request, what actors of one's own said,
what a refusal quotes, what an error says besides its kind, and of stderr all but where it came
from. A label becomes a word that is the same throughout one bundle.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import os
import platform
import re
import secrets
import tarfile
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from tools.inspect import check
from tools.inspect.records import lines_of, named, texts
from tools.inspect.run import PLACES, Run
from zpd.errors import UserError

LEFT_OUT = "[text left out]"
PACKAGES = ("zpd-serve", "pyzmq", "msgpack", "numpy", "torch", "tokenizers", "structlog", "msgspec")
QUOTING = ("bad_request",)  # outcomes whose detail may quote what was asked
WHYS = ("error", "why", "skip", "detail", "reason")  # fields that may say what was raised
RAISED = re.compile(r"(.*?\w(?:Error|Bug|Exception): ).*", re.DOTALL)
SAFE = re.compile(r'\s*File ".*|Traceback .*|(?P<error>[\w.]+(?:Error|Bug|Exception))(?::.*)?')
CONFIG_LIMIT = 1 << 20  # bytes


def write(run: Run, path: Path, *, with_texts: bool) -> list[str]:
    """The names that the archive holds. Raises UserError."""
    salt = secrets.token_bytes(16)
    try:
        with tarfile.open(path, "w:gz") as tar:
            taken: set[str] = set()
            for name, file in _files(run, salt, with_texts):
                info = tarfile.TarInfo(_free(name, taken))
                info.size = file.seek(0, os.SEEK_END)
                file.seek(0)
                tar.addfile(info, file)
                file.close()
            return tar.getnames()
    except OSError as e:
        raise UserError(f"-o {path}: {e.strerror}") from None


def _free(name: str, taken: set[str]) -> str:
    """The name, or where another file has it, the same name in a directory of its own: what is
    unpacked must not lie on top of each other."""
    at, _, last = name.rpartition("/")
    found, number = name, 1
    while found in taken:
        found, number = f"{at}/other-{number}/{last}", number + 1
    taken.add(found)
    return found


def _files(run: Run, salt: bytes, with_texts: bool) -> Iterator[tuple[str, IO[bytes]]]:
    yield "versions.json", _json(versions())
    yield "check.json", _json(_redacted(check.check(run).as_json(), with_texts))
    configs = {c: s.node for s in reversed(run.sources.values()) for c in _configs(s.paths)}
    names = Counter(config.name for config in configs)
    for config, node in sorted(configs.items()):
        # machines whose files share a name: each by the first node that has it
        name = config.name if names[config.name] == 1 else f"{node}/{config.name}"
        yield f"config/{name}", io.BytesIO(config.read_bytes())
    for number, directory in enumerate(run.directories):
        at = f"logs/{number}" if len(run.directories) > 1 else "logs"
        for path in sorted(directory.rglob("*")):
            name = f"{at}/{path.relative_to(directory)}"
            if path.name == "nodes.json":
                yield name, path.open("rb")
            elif path.suffix == ".stderr":
                yield name, _stderr(path, with_texts)
            elif any(path in s.paths for s in run.sources.values()):
                yield name.removesuffix(".gz"), _log(path, salt, with_texts)


def versions() -> dict[str, Any]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "-"
    return {
        "packages": found,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
    }


def _configs(paths: list[Path]) -> Iterator[Path]:
    """The topology files that a node's log names. What was copied along with the log is that
    machine's own; another one of this machine may lie where its log says."""
    for path in paths:
        for record in named(path, *PLACES[:1]):
            if record.config:
                config = Path(record.config)
                beside = path.parent / config.name
                found = beside if beside.is_file() else config
                if _is_topology(found):
                    yield found


def _is_topology(path: Path) -> bool:
    """A log from elsewhere may name any file of this machine."""
    try:
        if not path.is_file() or path.stat().st_size > CONFIG_LIMIT:
            return False
        return isinstance(tomllib.loads(path.read_text(encoding="utf-8")).get("topology"), dict)
    except (OSError, ValueError):  # not readable, not UTF-8, not TOML
        return False


def _log(path: Path, salt: bytes, with_texts: bool) -> IO[bytes]:
    out = cast(IO[bytes], tempfile.TemporaryFile())  # noqa: SIM115
    for _, text in texts(path):
        if with_texts:
            out.write(text)
            continue
        for line in lines_of(text):
            try:
                record = msgspec.json.decode(line)
                assert isinstance(record, dict)
            except (msgspec.DecodeError, UnicodeDecodeError, AssertionError):
                out.write(b"torn\n")
                continue
            out.write(msgspec.json.encode(redact(record, salt)) + b"\n")
    return out


def redact(record: dict[str, Any], salt: bytes) -> dict[str, Any]:
    if label := record.get("label"):
        word = hashlib.sha256(salt + str(label).encode()).hexdigest()[:8]
        record["label"] = f"label-{word}"
    if "said" in record:
        record["said"] = LEFT_OUT
    if record.get("outcome") in QUOTING and record.get("detail"):
        record["detail"] = LEFT_OUT
    for key in WHYS:
        if isinstance(record.get(key), str):
            record[key] = RAISED.sub(rf"\1{LEFT_OUT}", record[key])
    return record


def _redacted(verdict: dict[str, Any], with_texts: bool) -> dict[str, Any]:
    if not with_texts:
        for problem in verdict["problems"]:
            problem["text"] = LEFT_OUT
    return verdict


def _stderr(path: Path, with_texts: bool) -> IO[bytes]:
    if with_texts:
        return path.open("rb")
    lines = path.read_text("utf-8", "replace").splitlines()
    kept = (_safe(line) for line in lines)
    return io.BytesIO("".join(f"{line}\n" for line in kept).encode())


def _safe(line: str) -> str:
    match = SAFE.fullmatch(line)
    if match is None:
        return LEFT_OUT
    return match["error"] or line


def _json(value: Any) -> IO[bytes]:
    return io.BytesIO(json.dumps(value, indent=2).encode() + b"\n")
