"""``graynode dashboards push`` against a stand-in of Grafana's API that remembers."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_standin import TOKEN, VIEWER, GrafanaStandin

from graynode.service import dashboards_push
from graynode.service.config import ConfigError
from graynode.service.dashboards_grafana import Grafana, check_url
from graynode.service.dashboards_push import Wanted, steps

API, PROMETHEUS = "https://graynode.example.org:9405", "http://127.0.0.1:9090"


@pytest.fixture
def grafana() -> Iterator[GrafanaStandin]:
    """A server that has nothing yet."""
    with GrafanaStandin() as made:
        yield made


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """The file with the token that may."""
    return _secret(tmp_path / "token", TOKEN)


def _secret(path: Path, text: str) -> Path:
    path.write_text(text + "\n")
    path.chmod(0o600)
    return path


def push(grafana: GrafanaStandin, token: Path, *, yes: bool = True, **other: Any) -> tuple[int, list[str]]:
    """Exit code and what was said."""
    sink = io.StringIO()
    own = {"api_url": API, "api_token_file": _secret(token.with_name("api"), "gn_read"), "prometheus_url": PROMETHEUS}
    code = dashboards_push.run(url=grafana.url, token_file=token, yes=yes, sink=sink, **{**own, **other})
    return code, sink.getvalue().splitlines()


def test_without_yes_nothing_changes(grafana: GrafanaStandin, token: Path) -> None:
    """What would be done is said."""
    code, said = push(grafana, token, yes=False)
    assert code == 0
    assert grafana.changes == []
    assert len([line for line in said if line.startswith("would make")]) == 1 + 2 + 8
    assert said[-1] == "Nothing was changed: --yes does it."


def test_all_is_made_once_and_a_second_time_nothing(grafana: GrafanaStandin, token: Path) -> None:
    """Folder, two data sources, eight dashboards in the folder; the token of ours stays secret."""
    assert push(grafana, token)[0] == 0
    assert set(grafana.sources) == {"graynode-api", "graynode-prometheus"}
    assert grafana.secrets["graynode-api"] == {"bearerToken": "gn_read"}
    assert grafana.sources["graynode-api"]["jsonData"]["allowedHosts"] == [API]
    assert len(grafana.dashboards) == 8
    assert {d["meta"]["folderUid"] for d in grafana.dashboards.values()} == {"graynode"}
    grafana.changes.clear()
    code, said = push(grafana, token, api_token_file=None)
    assert (code, grafana.changes) == (0, [])
    assert {line.partition(":")[0] for line in said} == {"as it should be"}
    assert grafana.secrets["graynode-api"] == {"bearerToken": "gn_read"}


def test_what_was_changed_there_comes_back_as_ours(grafana: GrafanaStandin, token: Path) -> None:
    """One dashboard that somebody edited; the others are left."""
    push(grafana, token)
    grafana.dashboards["graynode-node"]["dashboard"]["panels"].pop()
    grafana.changes.clear()
    _, said = push(grafana, token, api_token_file=None)
    assert grafana.changes == ["POST /api/dashboards/db"]
    assert [line for line in said if line.startswith("changed")] == [
        "changed: dashboard graynode: one node (graynode-node)"
    ]
    assert grafana.dashboards["graynode-node"]["dashboard"]["version"] == 2


def test_what_is_not_ours_is_left_alone(grafana: GrafanaStandin, token: Path) -> None:
    """A dashboard without our tag, a provisioned one, a data source of another type: named, and code 1."""
    push(grafana, token)
    grafana.dashboards["graynode-fleet"]["dashboard"] |= {"tags": ["mine"], "title": "My <b>fleet</b>"}
    grafana.dashboards["graynode-cost"]["meta"]["provisioned"] = True
    grafana.sources["graynode-prometheus"]["type"] = "loki"
    grafana.folders["graynode"]["title"] = "\x1b[2Jgone"
    grafana.changes.clear()
    code, said = push(grafana, token, api_token_file=None)
    assert (code, grafana.changes) == (1, [])
    assert "\x1b" not in "".join(said)
    left = [line for line in said if line.startswith("left alone")]
    assert len(left) == 3
    assert "has no tag graynode, so not ours: 'My <b>fleet</b>'" in left[1]


def test_what_we_do_not_make_any_more_is_deleted_and_nothing_else(grafana: GrafanaStandin, token: Path) -> None:
    """Only with our uid, tag and folder, not from a file of the server; --keep leaves it; nothing without --yes."""
    push(grafana, token)
    held = grafana.dashboards

    def there(uid: str, title: str = "Old", tag: str = "graynode", **meta: Any) -> None:
        told = {"uid": uid, "title": title, "tags": [tag], "version": 1}
        held[uid] = {"dashboard": told, "meta": {"folderUid": "graynode", "provisioned": False, **meta}}

    there("graynode-old", "\x1b[2JOld")
    there("graynode-file", provisioned=True)
    there("graynode-mine", tag="mine")
    there("mine")
    there("graynode-moved", folderUid="team")
    grafana.changes.clear()
    code, said = push(grafana, token, api_token_file=None, keep=True)
    assert (code, grafana.changes) == (0, [])
    assert any("(graynode-old): this version does not make it any more; --keep leaves it" in line for line in said)
    _, said = push(grafana, token, api_token_file=None, yes=False)
    assert grafana.changes == []
    assert "\x1b" not in "".join(said)
    assert [line for line in said if line.startswith("would delete")] == [
        "would delete: dashboard  [2JOld (graynode-old): this version does not make it any more"
    ]
    code, said = push(grafana, token, api_token_file=None)
    assert (code, grafana.changes) == (1, ["DELETE /api/dashboards/uid/graynode-old"])
    assert [line for line in said if line.startswith("left alone")] == [
        "left alone: dashboard Old (graynode-file): it is provisioned from a file on the server: remove it there"
    ]
    assert {"graynode-file", "graynode-mine", "mine", "graynode-moved", "graynode-fleet"} <= set(held)


def test_a_dashboard_that_changes_meanwhile_is_not_overwritten(grafana: GrafanaStandin) -> None:
    """Grafana's 412 is said as what it is."""
    text = {"graynode-x": '{"uid": "graynode-x", "title": "X", "tags": ["graynode"]}'}
    client = Grafana(grafana.url, TOKEN)
    for step in steps(client, Wanted(text)):
        step.do and step.do()  # type: ignore[func-returns-value]
    grafana.dashboards["graynode-x"]["dashboard"]["title"] = "Y"
    last = list(steps(client, Wanted(text)))[-1]
    grafana.dashboards["graynode-x"]["dashboard"]["version"] = 7
    assert last.do is not None
    with pytest.raises(ConfigError, match="somebody changed it meanwhile, and it was not overwritten"):
        last.do()


def test_a_busy_server_is_asked_again(grafana: GrafanaStandin) -> None:
    """After 429 and 5xx, with growing waits; not for ever."""
    waits: list[float] = []
    client = Grafana(grafana.url, TOKEN, waits.append)
    grafana.busy = [429, 503, 500]
    assert client.folder("graynode") is None
    assert waits == [0.5, 1.0, 2.0]
    grafana.busy = [503] * 9
    with pytest.raises(ConfigError, match="answers 503: busy"):
        client.folder("graynode")
    grafana.busy = [302]
    with pytest.raises(ConfigError, match="does not answer as Grafana's API"):
        client.folder("graynode")


def test_wrong_and_weak_tokens_are_said(grafana: GrafanaStandin, token: Path, tmp_path: Path) -> None:
    """401, 403, a file that others read, one that is none."""
    for text, said in (
        ("glsa_wrong", "the token is wrong or has ended"),
        (VIEWER, "a service account of role Admin may"),
    ):
        with pytest.raises(ConfigError, match=said):
            push(grafana, _secret(tmp_path / "other", text))
    token.chmod(0o644)
    with pytest.raises(ConfigError, match="others can read it; chmod 600"):
        push(grafana, token)
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        push(grafana, tmp_path / "none")
    with pytest.raises(ConfigError, match="one token on one line"):
        push(grafana, _secret(tmp_path / "two", "a b"))


def test_a_name_that_is_taken_and_a_missing_token_are_said(grafana: GrafanaStandin, token: Path) -> None:
    """A data source of another uid has our name; ours cannot be made without a token for it."""
    code, said = push(grafana, token, api_token_file=None, yes=False)
    assert code == 1
    assert any("it needs a token of ours: --api-token-file" in line for line in said)
    grafana.sources["mine"] = {"name": "graynode", "uid": "mine", "type": "x"}
    with pytest.raises(ConfigError, match="something else has this name already"):
        push(grafana, token)


@pytest.mark.parametrize(
    ("url", "said"),
    [("http://grafana.example.org", "without TLS"), ("grafana", "an address is wanted"),
     ("https://a:b@c", "only an address"), ("ftp://x", "an address is wanted")],
)  # fmt: skip
def test_addresses_that_would_give_the_token_away_are_refused(url: str, said: str) -> None:
    """TLS, except on this machine."""
    with pytest.raises(ConfigError, match=said):
        check_url("--url", url)
    assert check_url("--url", "http://127.0.0.1:3000/") == "http://127.0.0.1:3000"


def test_nobody_there_is_said() -> None:
    """A closed port, after the last try."""
    with pytest.raises(ConfigError, match="cannot be reached"):
        Grafana("http://127.0.0.1:1", TOKEN, lambda _s: None).folder("graynode")
