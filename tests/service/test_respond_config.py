"""The table ``[respond]`` of the configuration, and ``graynode routes test``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from people_site import NOW, Site
from respond_configs import SECRET, config, secret
from roles import to_toml

from graynode.service.config import ConfigError
from graynode.service.respond_config import make_routes
from graynode.service.respond_make import make_receivers

# --- configuration and `graynode routes test` ---

NIGHT = {"name": "night", "receivers": ["team"], "quiet_hours": "22:00-07:00", "timezone": "Europe/Berlin"}


@pytest.fixture
def routed(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    hook = {"url": "https://a.example/", "secret_file": secret(tmp_path, "s", SECRET)}
    chat = {"urls_file": secret(tmp_path, "u", "json://127.0.0.1/x"), "digest_at": "08:00"}
    pages = 'severity = ["page"]\nreceivers = ["pager"]\ncontinue = true\nname = "pages"\n'
    text = to_toml({"respond": {"webhooks": {"pager": hook}, "chats": {"team": chat}}})
    text += f"[[respond.routes]]\n{pages}"
    text += '[[respond.routes]]\nname = "train"\npartition = ["train*"]\nreceivers = ["team"]\ndeliver = "digest"\n'
    text += "[[respond.routes]]\n" + to_toml(NIGHT)
    made.file.write_text(made.file.read_text() + text)
    return made


def test_routes_test_says_who_would_be_told_and_why(routed: Site) -> None:
    """Each route with its reason, each receiver with what it would hear; nobody is told by asking."""
    at = ("--at", "2026-12-02T23:00Z")
    ended = routed.run("routes", "test", "--severity", "page", "--cause", "gpu_lost", "--partition", "train-a", *at)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "An incident of severity page, cause gpu_lost, cluster prod, partition train-a:",
        "  pages: fits",
        "  train: fits",
        "  night: fits",
        "pager: at once, as a page (pages)",
        "team: in the digest of 2026-12-03 08:00 UTC (train)",
    ]
    ended = routed.run("routes", "test", "--severity", "ticket", *at)
    assert ended.stdout.splitlines()[1:] == [
        "  pages: no, severity 'ticket' is none of page",
        "  train: no, partition 'unknown' is none of train*",
        "  night: fits",
        "team: after quiet hours, at 2026-12-03 06:00 UTC (night)",
        "pager: nothing",
    ]


def test_routes_test_of_an_incident_that_there_is(routed: Site) -> None:
    """By the beginning of its id, as the lake or the bus has it."""
    routed.incident("aaaa1111-0000-5000-8000-000000000001", "n1", NOW, severity="page")
    ended = routed.run("routes", "test", "aaaa1", "--json", "--at", "2026-12-02T12:00Z")
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert [(r["receiver"], r["deliver"]) for r in told["receivers"]] == [("pager", "page"), ("team", "page")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "name an incident, or describe one: --severity page"),
        (("--severity", "loud"), "there are page, ticket, digest"),
        (("--severity", "page", "--cause", "bad"), "--cause 'bad': there is none such"),
        (("beef",), "no incident begins with 'beef'"),
    ],
)
def test_wrong_words_about_routes(words: tuple[str, ...], said: str, routed: Site) -> None:
    """A sentence with the way out."""
    ended = routed.run("routes", "test", *words)
    assert ended.returncode == 2
    assert said in ended.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"routes": [{"receivers": ["nobody"]}]}, "there is no receiver 'nobody'; there are am, pager, team"),
        ({"routes": [{"receivers": ["pager"], "quiet_hours": "22-7"}]}, "write 22:00-07:00"),
        ({"routes": [{"receivers": ["pager"], "quiet_days": ["sat"], "timezone": "Moon"}]}, "no time zone 'Moon'"),
        ({"digest_at": "8"}, "write 08:00, or hourly"),
    ],
)  # fmt: skip
def test_routes_that_cannot_be(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    """The route or receiver is named, and what is right."""
    with pytest.raises(ConfigError, match=said):
        make_routes(config(tmp_path, receivers(tmp_path, change)).respond)


def receivers(folder: Path, change: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "webhooks": {"pager": {"url": "https://a.example/", "secret_file": secret(folder, "s", SECRET)}},
        "alertmanagers": {"am": {"urls": ["https://am.example"]}},
        "chats": {"team": {"urls_file": secret(folder, "u", "json://127.0.0.1/x")}},
    }
    at = {"digest_at": change.pop("digest_at")} if "digest_at" in change else {}
    told["chats"]["team"] |= at
    return {**told, **change}


@pytest.mark.parametrize(
    ("kind", "section", "said"),
    [
        ("chats", {"urls_file": "/nowhere"}, r"respond\.chats\.x\.urls_file = /nowhere: cannot be read"),
        ("chats", {"urls": "# none\n"}, "no address in it; write one a line"),
        ("chats", {"urls": "json://mail.example/hunter2"}, r"respond\.chats\.x\.urls_file = .*use https"),
        ("alertmanagers", {"urls": ["http://am.example"]}, r"respond\.alertmanagers\.x\.urls: .*use https"),
        ("alertmanagers", {"urls": ["https://am.example"], "ca_file": "/nowhere"}, r"x\.ca_file = /nowhere"),
    ],
)
def test_receivers_that_cannot_be(kind: str, section: dict[str, Any], said: str, tmp_path: Path) -> None:
    """The key is named; what is secret is not shown."""
    if isinstance(section.get("urls"), str):
        section = {"urls_file": secret(tmp_path, "x", section["urls"])}
    with pytest.raises(ConfigError, match=said) as caught:
        make_receivers(config(tmp_path, {kind: {"x": section}}).respond, lambda _: {}, lambda _: None)
    assert "hunter2" not in str(caught.value)


def test_one_name_for_two_receivers_is_refused(tmp_path: Path) -> None:
    """Routes could not tell them apart."""
    told = receivers(tmp_path, {})
    told["chats"] = {"pager": told["chats"]["team"]}
    with pytest.raises(ConfigError, match=r"respond\.chats\.pager: respond\.webhooks\.pager has this name too"):
        make_receivers(config(tmp_path, told).respond, lambda _: {}, lambda _: None)


def test_config_check_names_what_routes_forget(routed: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """A receiver that no route names, a file that is not there."""
    text = routed.file.read_text().replace('receivers = ["pager"]', 'receivers = ["team"]')
    routed.file.write_text(text.replace(str(routed.folder / "u"), "/nowhere"))
    ended = routed.run("config", "check")
    assert ended.returncode == 1
    assert "respond.routes: none names the receiver 'pager'" in ended.stderr
    assert "respond.chats.team.urls_file = /nowhere: no such file" in ended.stderr
