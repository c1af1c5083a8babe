"""A small hub on loopback: the endpoints that huggingface_hub's downloads use, over a folder for each commit."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass
class LocalHub:
    """What the hub holds, how it misbehaves, and what it was asked.

    Attributes:
        models: Folder of each ``(model, commit)``.
        branches: Commit of each ``(model, branch)``.
        gated: Models that answer 403 to everyone.
        cut_after: Bytes of a file, by name, after which its connection breaks, the first time.
        down: Answer 503 to everything.
        asked: ``METHOD path range`` of every request so far.
    """

    models: dict[tuple[str, str], Path] = field(default_factory=dict)
    branches: dict[tuple[str, str], str] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    cut_after: dict[str, int] = field(default_factory=dict)
    down: bool = False
    asked: list[str] = field(default_factory=list)
    endpoint: str = ""

    def add(self, model: str, folder: Path, commit: str, branch: str = "main") -> None:
        """Put a folder at a commit, and a branch on it."""
        self.models[model, commit] = folder
        self.branches[model, branch] = commit

    def fetched(self) -> list[str]:
        """Names of the files that were sent, sorted."""
        gets = [line.split()[1] for line in self.asked if line.startswith("GET ") and "/resolve/" in line]
        return sorted(path.split("/resolve/")[1].partition("/")[2] for path in gets)


@contextmanager
def local_hub() -> Iterator[LocalHub]:
    """A running hub."""
    hub = LocalHub()

    class Handler(_Handler):
        held = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    held: LocalHub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *values: object) -> None:  # noqa: A002
        pass

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.held.asked.append(f"{self.command} {path} {self.headers.get('Range', '')}".rstrip())
        if self.held.down:
            return self._send(503, {})
        if path.startswith("/api/models/"):
            model, kind, revision = _split(path.removeprefix("/api/models/"), ("revision", "tree"))
        else:
            model, kind, rest = _split(path[1:], ("resolve",))
            revision, _, file = rest.partition("/")
        revision = revision or "main"
        if model in self.held.gated:
            return self._send(403, {"X-Error-Code": "GatedRepo"})
        if not any(name == model for name, _ in self.held.models):
            return self._send(401, {"X-Error-Code": "RepoNotFound"})
        commit = self.held.branches.get((model, revision), revision)
        folder = self.held.models.get((model, commit))
        if folder is None:
            return self._send(404, {"X-Error-Code": "RevisionNotFound"})
        if kind == "resolve":
            return self._send_file(folder / file, commit)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        names = {str(path.relative_to(folder)): path for path in files}
        if kind == "tree":
            listing = [
                {"type": "file", "path": name, "size": path.stat().st_size, "oid": _blob(path)}
                for name, path in names.items()
            ]
            return self._send(200, {}, json.dumps(listing).encode())
        info = {"id": model, "sha": commit, "siblings": [{"rfilename": name} for name in names]}
        return self._send(200, {}, json.dumps(info).encode())

    def _send_file(self, file: Path, commit: str) -> None:
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if not file.is_file():
            return self._send(404, {**headers, "X-Error-Code": "EntryNotFound"})
        body, start = file.read_bytes(), 0
        headers["ETag"] = f'"{_blob(file)}"'
        if asked := self.headers.get("Range"):
            start = int(asked.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        cut = self.held.cut_after.pop(file.name, None) if self.command == "GET" else None
        return self._send(206 if asked else 200, headers, body[start:], cut)

    def _send(self, status: int, headers: dict[str, str], body: bytes = b"", cut: int | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body[:cut])
        if cut is not None:
            self.close_connection = True


def _split(path: str, kinds: tuple[str, ...]) -> tuple[str, str, str]:
    """``owner/name``, the kind of request, and what stands behind it."""
    parts = path.split("/")
    at = next((place for place, part in enumerate(parts) if part in kinds), len(parts))
    return "/".join(parts[:at]), parts[at] if at < len(parts) else "info", "/".join(parts[at + 1 :])


def _blob(file: Path) -> str:
    """The name git gives a file's content."""
    body = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()
