"""A local HTTP server that implements the part of the Hub's API needed to upload and download models and datasets.

The token "writer" has write permission, "reader" has not; any other is invalid.
"""

import base64
import hashlib
import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from clean_process import run_python

COMMIT = "0" * 40


class LocalHub(ThreadingHTTPServer):
    """The server, with its repositories in memory.

    Attributes:
        repositories: the content of each file, as `repositories[kind][name][path]`; `kind` is "models", "datasets" or
            "spaces". The name of a branch other than main is `name@branch`.
        objects: uploaded large files (LFS), by their hash.
        failures: the status with which a large file of a repository fails, by the name of the repository.
        requests: the method and path of every request.
    """

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {"models": {}, "datasets": {}, "spaces": {}}
        self.objects: dict[str, bytes] = {}
        self.failures: dict[str, int] = {}
        self.requests: list[str] = []

    @property
    def address(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def local_hub() -> Iterator[LocalHub]:
    """Run a server in a thread until the block ends."""
    server = LocalHub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LocalHub

    def log_message(self, *args):
        """Print nothing."""

    def _answer(self, content: Any, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _read_body(self) -> bytes:
        """Return the body of the request, which may be chunked."""
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _may_write(self) -> bool:
        """Return whether the token has write permission; answer with the error if not."""
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token == "writer":
            return True
        self._answer({"error": "permission denied"}, 403 if token == "reader" else 401)
        return False

    def do_PUT(self):
        self.server.requests.append(f"PUT {self.path}")
        repository, oid = self.path.removeprefix("/objects/").rsplit("/", 1)
        self.server.objects[oid] = self._read_body()
        self._answer({}, self.server.failures.get(repository, 200))

    def do_POST(self):
        self.server.requests.append(f"POST {self.path}")
        body = self._read_body()
        if self.path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif self.path.startswith(("/v1/", "/v2/")):
            # the Xet storage in the first version of its protocol; what it receives is not unpacked
            known = self.path.startswith(("/v1/xorbs/", "/v1/shards"))
            self._answer({"was_inserted": True, "result": 1}, 200 if known else 404)
        elif not self._may_write():
            pass
        elif self.path == "/api/repos/create":
            request = json.loads(body)
            kind = f"{request.get('type') or 'model'}s"
            name = "/".join(filter(None, (request.get("organization") or "somebody", request["name"])))
            self.server.repositories[kind].setdefault(name, {})
            self._answer({"url": f"{self.server.address}/{name}", "name": name, "id": name})
        elif match := re.fullmatch(r"/api/models/(.+)/branch/(\w+)", self.path):
            self.server.repositories["models"].setdefault(f"{match[1]}@{match[2]}", {})
            self._answer({})
        elif match := re.fullmatch(r"/api/(\w+)/(.+)/preupload/(\w+)", self.path):
            paths = [file["path"] for file in json.loads(body)["files"]]
            modes = ["lfs" if path.endswith(".safetensors") else "regular" for path in paths]
            defaults = {"shouldIgnore": False, "oid": None}
            uploads = [{"path": p, "uploadMode": m, **defaults} for p, m in zip(paths, modes, strict=True)]
            self._answer({"files": uploads})
        elif match := re.fullmatch(r"/(.+)[.]git/info/lfs/objects/batch", self.path):
            objects = [self._lfs_upload(match[1], file) for file in json.loads(body)["objects"]]
            self._answer({"transfer": "basic", "objects": objects})
        elif match := re.fullmatch(r"/api/(\w+)/(.+)/commit/(\w+)", self.path):
            branch = "" if match[3] == "main" else f"@{match[3]}"
            files = self.server.repositories[match[1]][match[2] + branch]
            for line in body.splitlines():
                item = json.loads(line)
                if item["key"] == "file":
                    files[item["value"]["path"]] = base64.b64decode(item["value"]["content"])
                elif item["key"] == "deletedFile":
                    del files[item["value"]["path"]]
                elif item["key"] == "lfsFile":
                    oid = item["value"]["oid"]
                    # of a file in the Xet storage, only its hash is known
                    files[item["value"]["path"]] = self.server.objects.get(oid, oid.encode())
            url = f"{self.server.address}/{match[2]}/commit/{COMMIT}"
            self._answer({"success": True, "commitUrl": url, "commitOid": COMMIT, "hookOutput": ""})
        else:
            self._answer({"error": "unknown path"}, 404)

    def _lfs_upload(self, repository: str, file: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to the announcement of a large file: the URL to upload it to."""
        upload = {"href": f"{self.server.address}/objects/{repository}/{file['oid']}", "header": {}}
        return {"oid": file["oid"], "size": file["size"], "actions": {"upload": upload}}

    def do_GET(self):
        self.server.requests.append(f"{self.command} {self.path}")
        path = self.path.partition("?")[0]
        if match := re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)(/revision/\w+)?", path):
            files = self.server.repositories[match[1]].get(match[2])
            if files is not None:
                siblings = [{"rfilename": name} for name in files]
                repository = {"id": match[2], "modelId": match[2], "sha": COMMIT, "siblings": siblings}
                self._answer({**repository, "pipeline_tag": "translation", "private": False, "tags": []})
                return
            self._answer({"error": "no such repository"}, 404, X_Error_Code="RepoNotFound")
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/xet-write-token/\w+", path):
            storage = {"accessToken": "storage", "exp": 2**32, "casUrl": self.server.address}
            self._answer(storage, self.server.failures.get(match[1], 200))
        elif match := re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)/tree/\w+(/.*)?", path):
            files = self.server.repositories[match[1]].get(match[2], {})
            self._answer([{"type": "file", "path": n, "size": len(c), "oid": "0"} for n, c in files.items()])
        elif match := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/\w+/(.+)", path):
            kind = "datasets" if match[1] else "models"
            content = self.server.repositories[kind].get(match[2], {}).get(match[3])
            if content is None:
                self._answer(b"", 404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
            else:
                etag = f'"{hashlib.sha1(content).hexdigest()}"'
                self._answer(content, ETag=etag, X_Repo_Commit=COMMIT)
        else:
            self._answer({"error": "unknown path"}, 404)

    do_HEAD = do_GET  # noqa: N815


def hub_environment(server: LocalHub, token: str | None = "writer") -> dict[str, str]:
    """Return the environment variables for a process that uses `server` as the Hub."""
    return {"HF_ENDPOINT": server.address, "HF_HUB_OFFLINE": "0", **({"HF_TOKEN": token} if token else {})}


def run_command(
    arguments: list[str | int | Path], home: Path, status: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `vanilla-transformer` in a new process."""
    argv = [str(argument) for argument in arguments]
    code = f"import sys; from hf_vanilla_transformer.cli import main; sys.exit(main({argv!r}))"
    return run_python(code, home, package=True, status=status, **environment)
