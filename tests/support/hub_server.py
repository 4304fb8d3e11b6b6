"""A Hugging Face hub on loopback with one repository, as far as ``snapshot_download`` asks."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" * 6 + "c0ff"


@contextmanager
def serve_hub(repo: str, directory: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve the directory's files as ``repo``; the endpoint, and the requests so far ("GET /path")."""
    requests: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(f"{self.command} {self.path}")
            path = unquote(urlsplit(self.path).path)
            if path.startswith(f"/api/models/{repo}/tree/"):
                self._answer(json.dumps([_describe(file) for file in _list(directory)]).encode())
            elif path.startswith(f"/api/models/{repo}"):
                siblings = [{"rfilename": file.name} for file in _list(directory)]
                facts = {"id": repo, "sha": COMMIT, "siblings": siblings, "private": False}
                self._answer(json.dumps(facts).encode())
            elif path.startswith(f"/{repo}/resolve/") and (directory / Path(path).name).is_file():
                data = (directory / Path(path).name).read_bytes()
                self._answer(data, {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT})
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()

        def do_HEAD(self) -> None:
            self.do_GET()

        def _answer(self, data: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(200)
            for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _list(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.is_file())


def _describe(file: Path) -> dict[str, object]:
    data = file.read_bytes()
    return {"type": "file", "path": file.name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
