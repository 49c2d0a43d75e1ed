"""A Grafana server, as far as ``graynode dashboards push`` needs it: asked through grafana-client, with patience, and
with errors that say what to do."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from grafana_client import GrafanaApi
from grafana_client.client import GrafanaException

from graynode.dashboards.pieces import clean
from graynode.service.config import ConfigError

TIMEOUT_S: Final = 15.0
TRIES: Final = 5
_WAIT_S: Final = 0.5
"""Before the second try; twice as long before each further one: 7.5 s in all."""
_MOST: Final = 5000
"""Grafana gives no more of a search at once."""
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_NOT_FOUND, _UNAUTHORISED, _FORBIDDEN, _CONFLICT, _CHANGED, _BUSY = 404, 401, 403, 409, 412, 429
_SERVER: Final = 500
Json = dict[str, Any]


def check_url(name: str, url: str) -> str:
    """The address without a slash at its end; ``ConfigError`` where a token would go over the network in the clear."""
    told = urlsplit(url)
    if told.scheme not in ("http", "https") or not told.hostname:
        raise ConfigError(f"{name} {url!r}: an address is wanted, such as https://grafana.example.org")
    if told.username or told.password or told.query or told.fragment:
        raise ConfigError(f"{name}: only an address is wanted; a token stands in a file of its own")
    if told.scheme == "http" and told.hostname not in _LOOPBACK:
        raise ConfigError(f"{name} {url}: without TLS the token could be read on the way; take https://")
    return url.rstrip("/")


class Grafana:
    """One server, by address and token. What there is not is none; what fails is a ``ConfigError``."""

    def __init__(self, url: str, token: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self.url, self.sleep = url, sleep
        self._api: Any = GrafanaApi.from_url(url + "/", credential=token, timeout=TIMEOUT_S)
        # A redirect would carry the token elsewhere, and grafana-client would not notice.
        self._api.client.s.max_redirects = 0
        self._api.client.s.trust_env = False

    def folder(self, uid: str) -> Json | None:
        """The folder of that uid."""
        return self._get(lambda: self._api.folder.get_folder(uid))

    def source(self, uid: str) -> Json | None:
        """The data source of that uid."""
        return self._get(lambda: self._api.datasource.get_datasource_by_uid(uid))

    def dashboard(self, uid: str) -> Json | None:
        """``dashboard`` and ``meta`` of the dashboard of that uid."""
        return self._get(lambda: self._api.dashboard.get_dashboard(uid))

    def tagged(self, tag: str, folder: str) -> set[str]:
        """Uids of the dashboards with a tag in a folder."""
        rows = self._ask(lambda: self._api.search.search_dashboards(tag=tag, type_="dash-db", limit=_MOST))
        return {str(row.get("uid")) for row in rows if isinstance(row, dict) and row.get("folderUid") == folder}

    def delete_dashboard(self, uid: str) -> None:
        """Delete a dashboard."""
        self._ask(lambda: self._api.dashboard.delete_dashboard(uid))

    def make_folder(self, uid: str, title: str) -> None:
        """A new folder."""
        self._ask(lambda: self._api.folder.create_folder(title, uid))

    def put_source(self, told: Mapping[str, Any], *, new: bool) -> None:
        """Make or change a data source; what is kept secret in it stays where nothing new is said."""
        if new:
            self._ask(lambda: self._api.datasource.create_datasource(dict(told)))
        else:
            self._ask(lambda: self._api.datasource.update_datasource_by_uid(told["uid"], dict(told)))

    def put_dashboard(self, dashboard: Mapping[str, Any], folder: str, message: str) -> None:
        """Make or change a dashboard. One that changed since it was read (``version``) is not overwritten."""
        body = {"dashboard": dict(dashboard), "folderUid": folder, "message": message, "overwrite": False}
        self._ask(lambda: self._api.dashboard.update_dashboard(body))

    def _get(self, ask: Callable[[], Any]) -> Json | None:
        try:
            found: Json = self._ask(ask)
        except _NotThereError:
            return None
        return found

    def _ask(self, ask: Callable[[], Any]) -> Any:  # noqa: ANN401 (Grafana's JSON)
        """The answer. A busy or failing server is asked again; ``ConfigError`` says what else is wrong."""
        for left in range(TRIES - 1, -1, -1):
            try:
                return ask()
            except GrafanaException as error:
                if left == 0 or not (error.status_code == _BUSY or error.status_code >= _SERVER):
                    raise _said(self.url, error) from error
            except (requests.exceptions.TooManyRedirects, requests.exceptions.JSONDecodeError) as error:
                raise ConfigError(f"{self.url}: does not answer as Grafana's API; is the address right?") from error
            except requests.exceptions.SSLError as error:
                raise ConfigError(f"{self.url}: its certificate is not trusted: {error}") from error
            except requests.exceptions.RequestException as error:
                if left == 0:
                    raise ConfigError(f"{self.url}: cannot be reached: {type(error).__name__}") from error
            self.sleep(_WAIT_S * 2 ** (TRIES - 1 - left))
        raise AssertionError("unreachable")


class _NotThereError(ConfigError):
    """What was asked for is not there."""


def _said(url: str, error: GrafanaException) -> ConfigError:
    told = error.response.get("message", "") if isinstance(error.response, dict) else str(error.response)
    told = clean(told)[:200]
    status = int(error.status_code)
    if status == _NOT_FOUND:
        return _NotThereError(f"{url}: not found: {told}")
    return ConfigError(
        {
            _UNAUTHORISED: f"{url}: the token is wrong or has ended (--token-file)",
            _FORBIDDEN: f"{url}: the token may not do this; a service account of role Admin may: {told}",
            _CONFLICT: f"{url}: something else has this name already: {told}; rename or remove it there first",
            _CHANGED: f"{url}: somebody changed it meanwhile, and it was not overwritten: {told}; run this again",
        }.get(status, f"{url}: answers {status}: {told}")
    )
