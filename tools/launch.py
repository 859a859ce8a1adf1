"""The processes of a topology on this machine: started, polled, stopped, each by its own pid.

Every node is a process group of its own, so that a terminal's Ctrl-C reaches only the tool that
started it, and it is told that tool's pid, so that it ends should the tool be killed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import zpd
from nodes.segments import Files
from zpd import address, prefetch
from zpd.errors import UserError
from zpd.topology import Node, Topology

POLL = 0.02  # seconds between two looks at a process that is asked to end
GRACE = 1.0  # seconds for the interpreter's own exit, on top of the budget that a node knows
TAIL = 8192  # bytes of a node's stderr that are read for its last lines


@dataclass(frozen=True)
class Exit:
    """How a node's process ended. ``code``: the exit code, or minus the signal's number."""

    name: str
    pid: int
    code: int
    last: tuple[str, ...]  # the last lines of its stderr

    def __str__(self) -> str:
        how = f"exited with code {self.code}" if self.code >= 0 else f"was killed by {self.signal}"
        return f"{self.name} (pid {self.pid}) {how}" + (f": {self.last[-1]}" if self.last else "")

    @property
    def signal(self) -> str:
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"


class Running:
    """The local nodes of a topology. A context manager: leaving it leaves no process behind."""

    def __init__(self, topology: Topology, run_dir: Path, host: str = "") -> None:
        """``host``: start that host's nodes; "": those whose address is of this machine. Raises
        UserError where there are none, or where one has an address of another machine."""
        self.topology = topology
        self.run_dir = run_dir
        self.nodes = nodes_here(topology, host)
        self.exits: dict[str, Exit] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Spawn every local node. Raises UserError where the run directory cannot be written."""
        for node in self.nodes:
            self._spawn(node)

    def restart(self, name: str) -> None:
        """Spawn one local node again, whose process has ended; its stderr goes on where it was."""
        self._processes[name].wait()
        self.exits.pop(name, None)
        self._spawn(next(n for n in self.nodes if n.name == name))

    def _spawn(self, node: Node) -> None:
        try:
            with self.stderr(node.name).open("ab") as stderr:
                self._processes[node.name] = subprocess.Popen(
                    self.command(node),
                    stdin=subprocess.DEVNULL,
                    stdout=stderr,
                    stderr=stderr,
                    env=child_environment(),
                    start_new_session=True,
                )
        except OSError as e:
            raise UserError(f"run directory {self.run_dir}: {e.strerror}") from None

    def command(self, node: Node) -> list[str]:
        # -P: a foreign package in the current directory must not stand in for one of zpd's.
        start = [sys.executable, "-P", "-m", "zpd.node", "--config", self.topology.file]
        where = ["--run-dir", str(self.run_dir), "--parent", str(os.getpid())]
        flags = [prefetch.FLAG] if self.topology.prefetch_next else []
        return [*start, "--name", node.name, *where, *flags]

    @property
    def pids(self) -> dict[str, int]:
        """Of every node that was started, ended ones too."""
        return {name: p.pid for name, p in self._processes.items()}

    @property
    def alive(self) -> tuple[str, ...]:
        """Names of the nodes whose process has not ended, as of the last ``poll``."""
        return tuple(name for name in self._processes if name not in self.exits)

    def stderr(self, name: str) -> Path:
        return self.run_dir / f"{name}.stderr"

    def poll(self) -> tuple[Exit, ...]:
        """The nodes that ended since the last call."""
        new = []
        for name, process in self._processes.items():
            if name not in self.exits and (code := process.poll()) is not None:
                last = last_lines(self.stderr(name))
                self.exits[name] = Exit(name, process.pid, code, last)
                new.append(self.exits[name])
        return tuple(new)

    def stop(self, kill: bool = False) -> None:
        """End every node: SIGTERM, and SIGKILL to what is left after the stop budget.

        ``kill``: SIGKILL at once, which is also what a KeyboardInterrupt during the wait does.
        """
        deadline = time.monotonic() + self.topology.timeouts.stop + GRACE
        try:
            if not kill:
                for name in self.alive:
                    # A process that was stopped hears SIGTERM only once it goes on.
                    self._send(name, signal.SIGTERM)
                    self._send(name, signal.SIGCONT)
                while self.alive and time.monotonic() < deadline:
                    self.poll()
                    time.sleep(POLL)
        finally:
            for name in self.alive:
                self._send(name, signal.SIGKILL)
            for process in self._processes.values():
                process.wait()
            self.poll()
            if any(n.role == "decode" for n in self.nodes):
                Files(self.topology).clear()  # one that was killed could not

    def _send(self, name: str, number: signal.Signals) -> None:
        process = self._processes[name]
        if process.poll() is None:  # so the pid is still ours, and so is its group
            os.killpg(process.pid, number)

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop(kill=kind is not None and issubclass(kind, KeyboardInterrupt))


def nodes_here(topology: Topology, host: str) -> tuple[Node, ...]:
    """As ``Running`` starts them. Raises UserError."""
    local = tuple(n for n in topology.nodes if is_local(n.address))
    if not host:
        if not local:
            raise UserError(f"{topology.file}: no node has an address of this machine")
        return local
    hosts = sorted({n.host for n in topology.nodes if n.host})
    if host not in hosts:
        known = ", ".join(hosts) or "none: no node has the key host"
        raise UserError(f"--host {host}: {topology.file} has no such host; allowed are {known}")
    here = tuple(n for n in topology.nodes if n.host == host)
    for node in here:
        if node not in local:
            raise UserError(
                f"--host {host}: node {node.name}: address = {node.address}: "
                "is no address of this machine"
            )
    return here


def child_environment() -> dict[str, str]:
    """This process's environment, in which a child finds the same zpd."""
    root = str(Path(zpd.__file__).resolve().parent.parent)
    environment = dict(os.environ)
    if root not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        rest = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{root}{os.pathsep}{rest}" if rest else root
    return environment


def is_local(where: str) -> bool:
    """Whether a node with this address runs on this machine: one can bind to its host here."""
    host, _ = address.parse(where)
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, protocol, _, at in found:
        try:
            with socket.socket(family, kind, protocol) as s:
                s.bind(at)
        except OSError:
            continue
        return True
    return False


def last_lines(path: Path, count: int = 5) -> tuple[str, ...]:
    """The last lines of a text file that are not blank; none where it cannot be read."""
    try:
        with path.open("rb") as f:
            f.seek(max(0, f.seek(0, os.SEEK_END) - TAIL))
            text = f.read(TAIL).decode("utf-8", "replace")
    except OSError:
        return ()
    return tuple(line.rstrip() for line in text.splitlines() if line.strip())[-count:]
