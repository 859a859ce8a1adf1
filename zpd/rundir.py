"""IO. The directory of one run: a log for each node, and who they are (``nodes.json``)."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from zpd.errors import UserError
from zpd.topology import Topology

NODES = "nodes.json"
_LOCK_WAIT = 5.0  # seconds; a holder keeps it for one small read and write


@dataclass(frozen=True)
class NodeRecord:
    """One process of the run, as ``nodes.json`` holds it. Who starts it knows less than itself."""

    name: str
    role: str
    pid: int
    incarnation: int  # 0: not known yet
    address: str
    stderr: str = ""  # the file in the run directory that has its stderr; empty: none


def run_dir(topology: Topology, said: Path | None = None) -> Path:
    """``said``, made where it is not there yet; else a fresh ``<run_dir>/<time>-<topology>`` (UTC).

    The path is absolute. Raises UserError.
    """
    stem = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{topology.name}"
    fresh = (Path(topology.run_dir) / f"{stem}{n}" for n in ("", *range(-2, -1000, -1)))
    for path in [said] if said else fresh:
        try:
            path.mkdir(parents=True, exist_ok=said is not None)
        except FileExistsError:
            if said is None and path.is_dir():
                continue
            raise UserError(f"run directory {path}: is a file") from None
        except OSError as e:
            raise UserError(f"run directory {path}: {e.strerror}") from None
        return path.resolve()
    raise UserError(f"run directory {topology.run_dir}: holds 999 of {stem} already")


def add_node(directory: Path, record: NodeRecord) -> None:
    """Put a node into ``nodes.json``, in place of an older record of its name.

    What this record leaves open about the same process, the older one may know. Many nodes do this
    at once: each reads, adds and renames under a lock. Raises UserError.
    """
    try:
        with _locked(directory):
            records = {r.name: r for r in read_nodes(directory)}
            records[record.name] = _merged(records.get(record.name), record)
            part = directory / f"{NODES}.part"
            said = [asdict(records[name]) for name in sorted(records)]
            part.write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
            part.replace(directory / NODES)
    except OSError as e:
        raise UserError(f"{directory / NODES}: {e.strerror or e}") from None


def read_nodes(directory: Path) -> tuple[NodeRecord, ...]:
    """The nodes of a run, by name; none where no node started yet. Raises UserError."""
    file = directory / NODES
    try:
        return tuple(NodeRecord(**said) for said in json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return ()
    except OSError as e:
        raise UserError(f"{file}: {e.strerror}") from None
    except (TypeError, ValueError, RecursionError):
        raise UserError(f"{file}: is damaged: must be a list of nodes") from None


def _merged(old: NodeRecord | None, new: NodeRecord) -> NodeRecord:
    if old is None or old.pid != new.pid:
        return new
    return replace(
        new, incarnation=new.incarnation or old.incarnation, stderr=new.stderr or old.stderr
    )


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + _LOCK_WAIT
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise OSError(f"another process held its lock for {_LOCK_WAIT:g} s") from None
                time.sleep(0.005)
        yield
    finally:
        os.close(fd)
