"""A small server that speaks a Hugging Face hub's HTTP, for repositories that tests make up."""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"

Files = dict[str, bytes]


class Hub:
    """A context manager. ``repositories``: of each, such as ``org/tiny``, its files by path.
    ``log``: every file that was fetched. ``wrong``: what a path is served with, whatever its hash
    says."""

    def __init__(self, repositories: dict[str, Files]) -> None:
        self.repositories = repositories
        self.wrong: Files = {}
        self.log: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._answer(body=False)

            def do_GET(self) -> None:
                self._answer(body=True)

            def _answer(self, body: bool) -> None:
                path = unquote(urlsplit(self.path).path)
                asked = path.removeprefix("/api/models/").removesuffix("/revision/main")
                if path != asked and asked in hub.repositories:
                    listing = _listing(asked, hub.repositories[asked])
                    self._send(200, json.dumps(listing).encode(), {}, body)
                    return
                repository, _, name = path.removeprefix("/").partition(f"/resolve/{COMMIT}/")
                files = hub.repositories.get(repository)
                if files is None or name not in files:
                    code = "RepoNotFound" if files is None else "EntryNotFound"
                    self._send(404, b"", {"X-Error-Code": code}, body)
                    return
                if body:
                    hub.log.append(name)
                tag = hashlib.sha256(files[name]).hexdigest()
                headers = {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
                self._send(200, hub.wrong.get(name, files[name]), headers, body)

            def _send(self, status: int, content: bytes, more: dict[str, str], body: bool) -> None:
                self.send_response(status)
                for key, value in more.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if body:
                    self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Hub:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _listing(repository: str, files: Files) -> dict[str, object]:
    """Large files have the hash of their content, as the hub's own have."""
    siblings: list[dict[str, object]] = []
    for name, content in files.items():
        siblings.append({"rfilename": name, "size": len(content)})
        if name.endswith((".safetensors", ".bin")):
            sha256 = hashlib.sha256(content).hexdigest()
            siblings[-1]["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 130}
    return {"id": repository, "sha": COMMIT, "siblings": siblings}
