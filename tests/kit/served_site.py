"""A lake behind the HTTP API in this process: configuration, tokens, the application, clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from litestar import Litestar
from litestar.testing import TestClient
from roles import to_toml

from graynode.collectors.base import utc_now
from graynode.service.api.app import create_app
from graynode.service.api.state import Served
from graynode.service.config import Config, load
from graynode.service.fleet_now import FleetWatch
from graynode.service.tokens import Tokens

HOST = "http://127.0.0.1:9405"


class ServedSite:
    """``client`` asks in this process; ``token`` makes tokens. The fleet is looked at once, and again by ``look``."""

    def __init__(
        self, folder: Path, lake: Path, *, now: Any = utc_now, tables: Mapping[str, Any] | None = None, **serve: Any
    ) -> None:
        self.later = timedelta(0)

        def clock() -> datetime:
            told: datetime = now() + self.later
            return told

        folder.mkdir(parents=True, exist_ok=True)
        (folder / "bus").mkdir(exist_ok=True)
        self.folder = folder
        self.file = folder / "graynode.toml"
        settings: dict[str, Any] = {
            "cluster": serve.pop("cluster", "prod"),
            "bus": {"spool_dir": str(folder / "bus")},
            "lake": {"path": str(lake)},
            "serve": {"tokens_file": str(folder / "tokens.json"), **serve},
            **(tables or {}),
        }
        self.file.write_text(to_toml(settings))
        self.config: Config = load(self.file, env={})
        self.tokens = Tokens(self.config.serve.tokens_file)
        self.watch = FleetWatch(self.config, clock=clock)
        self.watch.refresh()
        self.served = Served.open(self.config, self.watch, clock)
        self.app: Litestar = create_app(self.served, [])

    def token(self, name: str = "reader", scope: str = "read", *, now: datetime | None = None, days: float = 1) -> str:
        moment = now or datetime.now(UTC)
        return self.tokens.create(name, scope, moment + timedelta(days=days), moment)

    def look(self) -> None:
        self.watch.refresh()

    @contextmanager
    def client(self, token: str | None = None, headers: Mapping[str, str] | None = None) -> Iterator[TestClient[Any]]:
        with TestClient(self.app, base_url=HOST, raise_server_exceptions=False) as client:
            client.headers.update(headers or {})
            if token is not None:
                client.headers["Authorization"] = f"Bearer {token}"
            yield client

    def close(self) -> None:
        self.served.close()
        self.watch.stop()
