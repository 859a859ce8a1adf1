"""A front door of real processes for tests: its topology, and plain HTTP requests to it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.process.harness import LIMIT, PATIENT, started, write_config
from tests.process.users import status, until_status
from tools.launch import Running
from zpd.config import load
from zpd.topology import Topology

SMOLLM = "smollm2-135m-instruct"


@dataclass(frozen=True)
class Front:
    topology: Topology
    running: Running
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """(status, JSON). ``body``: bytes as they are, else as JSON."""
        code, said, _ = self.whole(method, path, body, headers)
        return code, json.loads(said)

    def whole(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes, Mapping[str, str]]:
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **(headers or {})}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT)
        try:
            connection.request(method, path, raw, sent)
            response = connection.getresponse()
            return response.status, response.read(), dict(response.getheaders())
        finally:
            connection.close()

    def completion(self, **fields: Any) -> tuple[int, Any]:
        return self.request("POST", "/v1/completions", {"model": "toy", **fields})

    def idle(self) -> None:
        """Wait until nothing is in hand anywhere on the path; fail by name."""
        until_status(
            self.topology, "http",
            lambda s: s["actor"]["open"] == s["actor"]["pending"] == 0, "an idle front door",
        )  # fmt: skip
        name = self.topology.coordinator.name
        until_status(
            self.topology, name,
            lambda s: not s["actor"]["requests"] and not s["actor"]["clients"]
            and not s["actor"]["window"]["outstanding"], "an idle coordinator",
        )  # fmt: skip
        until_status(
            self.topology, self.topology.decode.name, lambda s: s["actor"]["idle"],
            "an idle decode node",
        )  # fmt: skip


@contextmanager
def front(directory: Path, **settings: Any) -> Iterator[Front]:
    """As ``write_config``; ``http`` has the door's own keys."""
    config = write_config(directory, **{"timeouts": PATIENT, "http": {}, **settings})
    with started(config, directory / "run") as running:
        topology = load(config)
        url = until_status(
            topology, "http", lambda s: s["ready"], "a front door that serves"
        )["actor"]["listens"]  # fmt: skip
        yield Front(topology, running, int(url.rpartition(":")[2]))


__all__ = ["Front", "front", "status"]
