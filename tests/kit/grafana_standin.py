"""A stand-in of Grafana's HTTP API on loopback that remembers folders, data sources and dashboards.

What it answers follows Grafana's documentation: 401 without the token, 403 for a token that may only look, 404, 409 for
a name that is taken, 412 for a dashboard whose version is not the newest.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

Json = dict[str, Any]
TOKEN, VIEWER = "glsa_admin", "glsa_viewer"


class GrafanaStandin:
    """Context manager. ``busy``: so many answers are this status first; ``changes`` is what was written."""

    def __init__(self) -> None:
        self.folders: dict[str, Json] = {}
        self.sources: dict[str, Json] = {}
        self.secrets: dict[str, Json] = {}
        self.dashboards: dict[str, Json] = {}
        self.changes: list[str] = []
        self.busy: list[int] = []
        self.before: Callable[[str], None] = lambda _path: None
        standin = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(*standin.answer("GET", self.path, self.headers.get("Authorization", ""), {}))

            def do_POST(self) -> None:
                self._write("POST")

            def do_PUT(self) -> None:
                self._write("PUT")

            def do_DELETE(self) -> None:
                self._answer(*standin.answer("DELETE", self.path, self.headers.get("Authorization", ""), {}))

            def _write(self, method: str) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self._answer(*standin.answer(method, self.path, self.headers.get("Authorization", ""), body))

            def _answer(self, status: int, body: Json | list[Json]) -> None:
                told = json.dumps(body).encode()
                self.send_response(status)
                if status == 302:
                    self.send_header("location", "http://127.0.0.1:1/login")
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(told)))
                self.end_headers()
                self.wfile.write(told)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> GrafanaStandin:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, method: str, path: str, authorization: str, body: Json) -> tuple[int, Json | list[Json]]:
        """Status and JSON."""
        self.before(path)
        if self.busy:
            return self.busy.pop(0), {"message": "busy"}
        if authorization not in (f"Bearer {TOKEN}", f"Bearer {VIEWER}"):
            return 401, {"message": "Invalid API key"}
        if method != "GET" and authorization == f"Bearer {VIEWER}":
            return 403, {"message": "You'll need additional permissions"}
        if method == "GET":
            return self._get(path)
        self.changes.append(f"{method} {path}")
        if path == "/api/folders":
            self.folders[body["uid"]] = {"uid": body["uid"], "title": body["title"], "version": 1}
            return 200, self.folders[body["uid"]]
        if path.startswith("/api/datasources"):
            return self._put_source(method, body)
        if path == "/api/dashboards/db":
            return self._put_dashboard(body)
        if method == "DELETE" and self.dashboards.pop(path.rpartition("/")[2], None):
            return 200, {"message": "deleted"}
        return 404, {"message": "Not found"}

    def _get(self, path: str) -> tuple[int, Json | list[Json]]:
        if path.startswith("/api/search?"):
            asked = parse_qs(path.partition("?")[2])
            return 200, [
                {"uid": uid, "title": d["dashboard"]["title"], "folderUid": d["meta"]["folderUid"], "type": "dash-db"}
                for uid, d in self.dashboards.items()
                if set(asked["tag"]) <= set(d["dashboard"].get("tags") or [])
            ]
        kind, _, uid = path.removeprefix("/api/").rpartition("/")
        held = {"folders": self.folders, "datasources/uid": self.sources, "dashboards/uid": self.dashboards}.get(
            kind, {}
        )
        return (200, held[uid]) if uid in held else (404, {"message": f"{kind} not found"})

    def _put_source(self, method: str, body: Json) -> tuple[int, Json]:
        others = [s for uid, s in self.sources.items() if uid != body["uid"]]
        if method == "POST" and any(s["name"] == body["name"] for s in others):
            return 409, {"message": "data source with the same name already exists"}
        secret = body.pop("secureJsonData", {})
        self.secrets[body["uid"]] = {**self.secrets.get(body["uid"], {}), **secret}
        fields = dict.fromkeys(self.secrets[body["uid"]], True)
        old = self.sources.get(body["uid"], {"id": len(self.sources) + 1, "orgId": 1, "version": 0})
        self.sources[body["uid"]] = {**old, **body, "secureJsonFields": fields, "readOnly": False}
        return 200, {"datasource": self.sources[body["uid"]]}

    def _put_dashboard(self, body: Json) -> tuple[int, Json]:
        told = dict(body["dashboard"])
        old = self.dashboards.get(told["uid"])
        if old and not body.get("overwrite") and told.get("version") != old["dashboard"]["version"]:
            return 412, {"message": "The dashboard has been changed by someone else", "status": "version-mismatch"}
        version = old["dashboard"]["version"] + 1 if old else 1
        told |= {"id": old["dashboard"]["id"] if old else len(self.dashboards) + 1, "version": version}
        self.dashboards[told["uid"]] = {
            "dashboard": told,
            "meta": {"folderUid": body["folderUid"], "provisioned": False},
        }
        return 200, {"uid": told["uid"], "status": "success", "version": version}
