"""What `make` runs first: .venv with the pinned packages and zpd, whole or not at all.

Run by the system's Python, so only the standard library is imported. A stamp is written last and
names everything that the environment was made from. Without an equal stamp the environment is made
again from nothing: an installer that was killed may leave a package that looks complete and is not.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

MADE_FROM = ("pyproject.toml", "constraints.txt")
IMPORTS = "import gguf, jinja2, msgpack, pytest, rich, structlog, tokenizers, torch, zmq, zpd"

Run = Callable[[Sequence[str], int], None]


def run(command: Sequence[str], lock: int) -> None:
    """Raises CalledProcessError. The command holds the lock too, so that an installer that outlives
    a killed parent still keeps the next one out."""
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, pass_fds=(lock,))


def stamp_text(root: Path) -> str:
    """What an environment of this checkout is made from. A moved checkout or another Python makes
    another text, since scripts in .venv hold absolute paths."""
    said = hashlib.sha256()
    for name in MADE_FROM:
        said.update((root / name).read_bytes())
    return f"{root}\n{sys.version}\n{os.path.realpath(sys.executable)}\n{said.hexdigest()}\n"


def ensure(root: Path, run: Run = run) -> bool:
    """Make ``root/.venv`` unless it is complete. Returns whether it had to be made."""
    venv, stamp = root / ".venv", root / ".venv" / "zpd-complete"
    # Where this already is .venv's own Python, it is the one below that makes environments.
    base = getattr(sys, "_base_executable", sys.executable)
    with (root / ".venv.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another make that builds .venv", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        text = stamp_text(root)
        python = str(venv / "bin" / "python")
        if stamp.is_file() and stamp.read_text() == text and Path(python).exists():
            return False
        stamp.unlink(missing_ok=True)
        print(f"making .venv with {base}", flush=True)
        run([base, "-m", "venv", "--clear", str(venv)], lock.fileno())
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install"]
        pip += ["-c", str(root / "constraints.txt")]
        run([*pip, "setuptools"], lock.fileno())
        run([*pip, "--no-build-isolation", "-e", f"{root}[test]"], lock.fileno())
        run([python, "-c", IMPORTS], lock.fileno())
        part = stamp.with_suffix(".part")
        part.write_text(text)
        part.replace(stamp)
        return True


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    try:
        ensure(root)
    except subprocess.CalledProcessError as e:
        print(
            f"make: .venv was not made: this command failed with exit code {e.returncode}:\n"
            f"  {' '.join(map(str, e.cmd))}\n"
            "(on Debian, `-m venv` needs the package python3-venv). Run make again to go on.",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print("make: stopped; run make again to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
