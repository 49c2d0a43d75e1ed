"""Who may ask: tokens, scopes, sessions, CSRF, and the host that is asked."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient
from served_site import ServedSite

from graynode.service.api.access import COOKIE, CSRF_COOKIE, CSRF_HEADER

PUBLIC = {"/healthz", "/readyz"}
LATER = datetime.now(UTC) + timedelta(days=400)


@pytest.fixture
def client(empty: ServedSite) -> Iterator[TestClient[Any]]:
    with empty.client() as made:
        yield made


def routes(site: ServedSite) -> list[tuple[str, str]]:
    """Every route of the application with a value for each part of its path."""
    return [
        (method, "".join("/x" if not isinstance(part, str) else f"/{part}" for part in route.path_components))
        for route in site.app.routes
        for method in sorted(getattr(route, "http_methods", []) or route.methods)
        if method != "OPTIONS"
    ]


def test_every_route_but_health_and_sign_in_denies_without_a_token(empty: ServedSite, client: TestClient[Any]) -> None:
    """A route that forgets to say that it is public is closed, and so is the description of the API."""
    asked = routes(empty)
    assert len(asked) > 40
    for method, path in asked:
        if path in PUBLIC or (method, path) == ("POST", "/session"):
            continue
        answer = client.request(method, path, follow_redirects=False)
        assert answer.status_code == 401 or answer.headers.get("location") == "/signin", (method, path, answer.text)


def test_health_answers_anybody(client: TestClient[Any]) -> None:
    """A supervisor has no token."""
    assert client.get("/healthz").text == "ok\n"
    assert client.get("/readyz").status_code in (200, 503)


@pytest.mark.parametrize("header", ["", "Bearer ", "Bearer wrong", "Basic abc", "Bearer " + "x" * 3000, "bearer\tx"])
def test_a_wrong_token_is_refused(client: TestClient[Any], header: str) -> None:
    """Whatever stands in the header."""
    answer = client.get("/api/v1/nodes", headers={"Authorization": header})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_token_ends_and_is_revoked_at_once(empty: ServedSite, client: TestClient[Any]) -> None:
    """No restart in between."""
    ended = empty.token("ended", now=datetime.now(UTC) - timedelta(days=2), days=1)
    assert client.get("/api/v1/nodes", headers={"Authorization": f"Bearer {ended}"}).status_code == 401
    good = {"Authorization": f"Bearer {empty.token('good')}"}
    assert client.get("/api/v1/nodes", headers=good).status_code == 200
    empty.tokens.revoke("good")
    assert client.get("/api/v1/nodes", headers=good).status_code == 401


def test_a_token_is_kept_as_a_hash_in_a_file_that_others_cannot_read(empty: ServedSite) -> None:
    """Whoever reads the file has no token."""
    token = empty.token()
    path = empty.config.serve.tokens_file
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token not in path.read_text()
    assert len(json.loads(path.read_text())["tokens"][0]["sha256"]) == 64


def test_a_tokens_file_that_others_can_read_lets_nobody_in(empty: ServedSite, client: TestClient[Any]) -> None:
    """It says so in the log, and answers 503 instead of trusting it."""
    token = empty.token()
    empty.config.serve.tokens_file.chmod(0o644)
    answer = client.get("/api/v1/nodes", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 503


def test_a_reader_may_not_act(empty: ServedSite, client: TestClient[Any]) -> None:
    """403, and the name of the scope that it takes."""
    headers = {"Authorization": f"Bearer {empty.token()}"}
    for path in ("incidents/aaaa/label", "incidents/aaaa/ack", "nodes/n1/mute", "nodes/n1/unmute"):
        answer = client.post(f"/api/v1/{path}", json={}, headers=headers)
        assert answer.status_code == 403
        assert "scope act" in answer.json()["detail"]


# --- sessions ---------------------------------------------------------------------------------------------


def sign_in(client: TestClient[Any], token: str) -> dict[str, Any]:
    answer = client.post("/session", json={"token": token})
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def test_a_session_is_a_cookie_that_scripts_cannot_read(empty: ServedSite, client: TestClient[Any]) -> None:
    """HttpOnly and SameSite=Strict; the CSRF token is the part that the page's script reads."""
    answer = client.post("/session", json={"token": empty.token("ann", "act")})
    cookies = answer.headers.get_list("set-cookie")
    session = next(c for c in cookies if c.startswith(COOKIE))
    assert "HttpOnly" in session
    assert "SameSite=strict" in session.replace("Strict", "strict")
    assert "HttpOnly" not in next(c for c in cookies if c.startswith(CSRF_COOKIE))
    assert client.get("/session").json()["name"] == "ann"
    assert client.get("/api/v1/nodes").status_code == 200


def test_a_session_survives_a_restart(empty: ServedSite, client: TestClient[Any]) -> None:
    """It is no row in the memory of one process."""
    sign_in(client, empty.token())
    other = ServedSite(empty.folder, Path(empty.config.lake.path), listen="127.0.0.1:1")
    try:
        with other.client() as again:
            again.cookies.update(client.cookies)
            assert again.get("/api/v1/nodes").status_code == 200
    finally:
        other.close()


def test_a_session_ends_with_its_token(empty: ServedSite, client: TestClient[Any]) -> None:
    """Also where another token of the same name comes after it."""
    sign_in(client, empty.token("ann"))
    empty.tokens.revoke("ann")
    assert client.get("/api/v1/nodes").status_code == 401
    empty.token("ann")
    assert client.get("/api/v1/nodes").status_code == 401


FORGERIES = {
    "another signature": lambda cookie: cookie[:-1] + ("0" if cookie[-1] != "0" else "1"),
    "more parts": lambda cookie: cookie.replace("|", "||"),
    "another name": lambda cookie: "act" + cookie,
    "nothing between": lambda _cookie: "|||",
    "one letter": lambda _cookie: "x",
    "too long": lambda cookie: cookie * 9,
}


@pytest.mark.parametrize("change", FORGERIES.values(), ids=FORGERIES)
def test_a_forged_session_is_none(empty: ServedSite, client: TestClient[Any], change: Any) -> None:
    """The signature covers all of it."""
    sign_in(client, empty.token())
    cookie = client.cookies[COOKIE]
    client.cookies.clear()
    client.cookies.set(COOKIE, change(cookie), domain="127.0.0.1")
    assert client.get("/api/v1/nodes").status_code == 401


def test_a_session_is_over_after_its_hours(empty: ServedSite, client: TestClient[Any]) -> None:
    """``serve.session_h``, whatever the browser keeps."""
    sign_in(client, empty.token(days=3000))
    empty.later = timedelta(hours=13)
    assert client.get("/api/v1/nodes").status_code == 401


def test_a_change_by_cookie_needs_the_csrf_token(empty: ServedSite, client: TestClient[Any]) -> None:
    """A form of another site sends the cookie at most, and never this header."""
    csrf = sign_in(client, empty.token("ann", "act"))["csrf"]
    body = {"verdict": "true", "why": "because"}
    for headers in ({}, {CSRF_HEADER: ""}, {CSRF_HEADER: "x" * len(csrf)}):
        answer = client.post("/api/v1/incidents/abcd/label", json=body, headers=headers)
        assert (answer.status_code, "CSRF" in answer.text) == (403, True)
    answer = client.post("/api/v1/incidents/abcd/label", json=body, headers={CSRF_HEADER: csrf})
    assert answer.status_code == 404


def test_signing_out_takes_the_cookies_away(empty: ServedSite, client: TestClient[Any]) -> None:
    """The browser forgets both."""
    csrf = sign_in(client, empty.token())["csrf"]
    answer = client.delete("/session", headers={CSRF_HEADER: csrf})
    assert answer.status_code == 200
    assert len([c for c in answer.headers.get_list("set-cookie") if "Max-Age=0" in c]) == 2


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"token": 1}', b'{"token": "x", "more": 1}', b"token=x"])
def test_a_wrong_sign_in_is_refused_in_words(client: TestClient[Any], body: bytes) -> None:
    """Nothing but a token is taken."""
    answer = client.post("/session", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 401)
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
def test_a_form_of_another_site_signs_nobody_in(empty: ServedSite, client: TestClient[Any], kind: str | None) -> None:
    """It could be made to send JSON, but not to call it so; who signs in there would act under another's name."""
    token = empty.token()
    body = '{"token":"=","token":"' + token + '"}'
    answer = client.post("/session", content=body, headers={"content-type": kind} if kind else {})
    assert (answer.status_code, answer.headers.get_list("set-cookie")) == (415, [])


# --- hosts and headers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9405", "127.0.0.1.evil.example", "", "10.0.0.1"])
def test_another_host_name_is_refused(client: TestClient[Any], host: str) -> None:
    """DNS rebinding: a page of another site that points its own name at this machine."""
    answer = client.get("/healthz", headers={"host": host})
    assert answer.status_code == 421
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9405", "[::1]:9405", "LOCALHOST"])
def test_loopback_is_answered_by_any_of_its_names(client: TestClient[Any], host: str) -> None:
    """With and without a port."""
    assert client.get("/healthz", headers={"host": host}).status_code == 200


def test_a_configured_host_is_answered(tmp_path: Path) -> None:
    """``serve.hosts``, for a server behind a name."""
    site = ServedSite(tmp_path, tmp_path / "lake", hosts=["graynode.example.org"])
    with site.client() as client:
        assert client.get("/healthz", headers={"host": "graynode.example.org"}).status_code == 200
    site.close()


@pytest.mark.parametrize("path", ["/healthz", "/api/v1/nodes", "/nowhere"])
def test_every_answer_has_security_headers_and_none_of_cors(client: TestClient[Any], path: str) -> None:
    """Refusals too."""
    answer = client.get(path, headers={"Origin": "https://evil.example"})
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not [name for name in answer.headers if name.startswith("access-control")]
