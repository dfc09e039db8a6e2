"""A small HTTP server that speaks as much of the Hub's API as uploads and downloads of models need.

Repositories are dictionaries of files in memory. The token "writer" may write, "reader" may not, others are unknown.
"""

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0" * 40


class Hub(ThreadingHTTPServer):
    """`repositories[kind][name][path]` is a file's content; `requests` are those that came."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {"models": {}, "spaces": {}}
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextmanager
def hub():
    server = Hub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *args):
        pass

    def _answer(self, content: Any, status: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _may_write(self) -> bool:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token == "writer":
            return True
        self._answer({"error": "no"}, 403 if token == "reader" else 401)
        return False

    def do_PUT(self):
        self.server.requests.append(f"PUT {self.path}")
        self.server.objects[self.path.rsplit("/", 1)[1]] = self._body()
        self._answer({})

    def do_POST(self):
        self.server.requests.append(f"POST {self.path}")
        body = self._body()
        if self.path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif not self._may_write():
            pass
        elif self.path == "/api/repos/create":
            wanted = json.loads(body)
            kind = f"{wanted.get('type') or 'model'}s"
            name = "/".join(filter(None, (wanted.get("organization") or "somebody", wanted["name"])))
            self.server.repositories[kind].setdefault(name, {})
            self._answer({"url": f"{self.server.address}/{name}", "name": name, "id": name})
        elif match := re.fullmatch(r"/api/(\w+)/(.+)/preupload/main", self.path):
            paths = [file["path"] for file in json.loads(body)["files"]]
            modes = ["lfs" if path.endswith(".safetensors") else "regular" for path in paths]
            about = {"shouldIgnore": False, "oid": None}
            self._answer({"files": [{"path": p, "uploadMode": m, **about} for p, m in zip(paths, modes, strict=True)]})
        elif self.path.endswith("/info/lfs/objects/batch"):
            self._answer({"transfer": "basic", "objects": [self._place(o) for o in json.loads(body)["objects"]]})
        elif match := re.fullmatch(r"/api/(\w+)/(.+)/commit/main", self.path):
            files = self.server.repositories[match[1]][match[2]]
            for line in body.splitlines():
                item = json.loads(line)
                if item["key"] == "file":
                    files[item["value"]["path"]] = base64.b64decode(item["value"]["content"])
                elif item["key"] == "lfsFile":
                    files[item["value"]["path"]] = self.server.objects[item["value"]["oid"]]
            url = f"{self.server.address}/{match[2]}/commit/{COMMIT}"
            self._answer({"success": True, "commitUrl": url, "commitOid": COMMIT, "hookOutput": ""})
        else:
            self._answer({"error": "unknown"}, 404)

    def _place(self, wanted: dict) -> dict:
        upload = {"href": f"{self.server.address}/objects/{wanted['oid']}", "header": {}}
        return {"oid": wanted["oid"], "size": wanted["size"], "actions": {"upload": upload}}

    def do_GET(self):
        self.server.requests.append(f"{self.command} {self.path}")
        path = self.path.partition("?")[0]
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/\w+)?", path):
            files = self.server.repositories["models"].get(match[1])
            if files is not None:
                siblings = [{"rfilename": name} for name in files]
                about = {"id": match[1], "modelId": match[1], "sha": COMMIT, "siblings": siblings}
                self._answer({**about, "pipeline_tag": "translation", "private": False, "tags": []})
                return
            self._answer({"error": "none"}, 404, X_Error_Code="RepoNotFound")
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/\w+(/.*)?", path):
            files = self.server.repositories["models"].get(match[1], {})
            kind = "file"
            self._answer([{"type": kind, "path": n, "size": len(c), "oid": "0"} for n, c in files.items()])
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/\w+/(.+)", path):
            content = self.server.repositories["models"].get(match[1], {}).get(match[2])
            if content is None:
                self._answer(b"", 404, X_Error_Code="EntryNotFound", X_Repo_Commit=COMMIT)
            else:
                etag = f'"{hashlib.sha1(content).hexdigest()}"'
                self._answer(content, ETag=etag, X_Repo_Commit=COMMIT)
        else:
            self._answer({"error": "unknown"}, 404)

    do_HEAD = do_GET  # noqa: N815
