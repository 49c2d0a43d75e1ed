"""``graynode dashboards push``: folder, data sources and dashboards on a Grafana server, only what is ours.

Ours is a dashboard whose uid begins with ``graynode-`` and that has the tag ``graynode``; a data source of our uid and
type. Whatever else has one of our uids is left alone and named. Of our dashboards in our folder, those that this
version does not make any more are deleted (``keep``: left there). Without ``yes`` nothing is changed: what would be is
said. A second run changes nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TextIO

from graynode.dashboards.grafana.links import FOLDER_UID, PREFIX, TAG
from graynode.dashboards.pieces import clean
from graynode.service.config import ConfigError
from graynode.service.dashboards_files import FOLDER, Sources, dashboards
from graynode.service.dashboards_grafana import Grafana, Json, check_url

_LONGEST_TOKEN: Final = 4096


@dataclass(frozen=True, slots=True)
class Step:
    """One thing: what would be done with it (``keep``: nothing), and how; ``refuse`` says why not."""

    what: str
    verb: Literal["make", "change", "delete", "keep", "refuse"]
    why: str = ""
    do: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the server should have. An address that is empty: the data source is left as it is."""

    texts: Mapping[str, str]
    api_url: str = ""
    api_token: str = ""
    prometheus_url: str = ""
    folder: str = FOLDER
    keep: bool = False


def run(
    *, url: str, token_file: Path, folder: str = FOLDER, api_url: str = "", api_token_file: Path | None = None,
    prometheus_url: str = "", keep: bool = False, yes: bool = False, sink: TextIO | None = None,
) -> int:  # fmt: skip
    """Say what would change, or with ``yes`` change it. 0: done; 1: something was refused. ``ConfigError``."""
    sink = sink or sys.stdout
    wanted = Wanted(
        dashboards(),
        check_url("--api-url", api_url) if api_url else "",
        read_token("--api-token-file", api_token_file) if api_token_file else "",
        prometheus_url.rstrip("/"),
        folder,
        keep,
    )
    grafana = Grafana(check_url("--url", url), read_token("--token-file", token_file))
    refused = 0
    for step in steps(grafana, wanted):
        refused += step.verb == "refuse"
        if yes and step.do is not None:
            step.do()
        print(_line(step, done=yes), file=sink)
    if not yes:
        print("Nothing was changed: --yes does it.", file=sink)
    return 1 if refused else 0


def read_token(name: str, path: Path) -> str:
    """A token from a file of its own; ``ConfigError`` where it is none, or others may read it."""
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigError(f"{name} {path}: others can read it; chmod 600 {path}")
        told = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{name} {path}: cannot be read: {getattr(error, 'strerror', 'is no text')}") from error
    if not told or len(told) > _LONGEST_TOKEN or any(c.isspace() for c in told):
        raise ConfigError(f"{name} {path}: one token on one line is wanted")
    return told


def steps(grafana: Grafana, wanted: Wanted) -> Iterator[Step]:
    """What there is to do, thing by thing; each is looked at only after what came before it was done."""
    yield _folder(grafana, wanted)
    sources = Sources(wanted.api_url, wanted.prometheus_url)
    if wanted.api_url:
        yield _source(grafana, sources.api(), wanted.api_token)
    if wanted.prometheus_url:
        yield _source(grafana, sources.prometheus(), "")
    for uid, text in wanted.texts.items():
        yield _dashboard(grafana, uid, json.loads(text))
    for uid in sorted(grafana.tagged(TAG, FOLDER_UID) - set(wanted.texts)):
        if uid.startswith(PREFIX):
            yield from _former(grafana, uid, keep=wanted.keep)


def _folder(grafana: Grafana, wanted: Wanted) -> Step:
    found = grafana.folder(FOLDER_UID)
    if found is not None:
        return Step(f"folder {found.get('title', FOLDER_UID)}", "keep")
    return Step(f"folder {wanted.folder}", "make", do=lambda: grafana.make_folder(FOLDER_UID, wanted.folder))


def _source(grafana: Grafana, told: Json, token: str) -> Step:
    what = f"data source {told['name']} ({told['url']})"
    found = grafana.source(told["uid"])
    if found is not None and found.get("type") != told["type"]:
        return Step(what, "refuse", f"one of uid {told['uid']} is of type {found.get('type')}, so not ours")
    if found is not None and found.get("readOnly"):
        return Step(what, "keep", "it is provisioned from a file on the server")
    body = {**told, **({"secureJsonData": {"bearerToken": token}} if token else {})}
    if found is None:
        if told["uid"] == "graynode-api" and not token:
            return Step(what, "refuse", "it needs a token of ours: --api-token-file (graynode token create)")
        return Step(what, "make", do=lambda: grafana.put_source(body, new=True))
    same = all(found.get(key) == value for key, value in told.items())
    if same and not token:
        return Step(what, "keep")
    why = "its token is set anew" if same else ""
    return Step(what, "change", why, do=lambda: grafana.put_source(body, new=False))


def _dashboard(grafana: Grafana, uid: str, told: Json) -> Step:
    what = f"dashboard {told['title']} ({uid})"
    found = grafana.dashboard(uid)
    if found is None:
        return Step(what, "make", do=lambda: grafana.put_dashboard(told, FOLDER_UID, "graynode dashboards push"))
    there, meta = found["dashboard"], found.get("meta", {})
    if TAG not in (there.get("tags") or []):
        return Step(what, "refuse", f"one of that uid has no tag {TAG}, so not ours: {there.get('title')!r}")
    if meta.get("provisioned"):
        return Step(what, "refuse", "it is provisioned from a file on the server: change it there")
    if all(there.get(key) == value for key, value in told.items()) and meta.get("folderUid") == FOLDER_UID:
        return Step(what, "keep")
    body = {**told, "id": there.get("id"), "version": there.get("version")}
    return Step(what, "change", do=lambda: grafana.put_dashboard(body, FOLDER_UID, "graynode dashboards push"))


def _former(grafana: Grafana, uid: str, *, keep: bool) -> Iterator[Step]:
    """One with our marks that this version does not make."""
    found = grafana.dashboard(uid)
    if found is None or TAG not in (found["dashboard"].get("tags") or []):
        return  # somebody was faster, or it is theirs now
    meta = found.get("meta", {})
    what = f"dashboard {found['dashboard'].get('title')} ({uid})"
    if meta.get("folderUid") != FOLDER_UID:
        return
    if keep:
        yield Step(what, "keep", "this version does not make it any more; --keep leaves it")
    elif meta.get("provisioned"):
        yield Step(what, "refuse", "it is provisioned from a file on the server: remove it there")
    else:
        why = "this version does not make it any more"
        yield Step(what, "delete", why, do=lambda: grafana.delete_dashboard(uid))


def _line(step: Step, *, done: bool) -> str:
    """One line for a person."""
    verb = {
        "make": "made" if done else "would make",
        "change": "changed" if done else "would change",
        "delete": "deleted" if done else "would delete",
        "keep": "as it should be",
        "refuse": "left alone",
    }[step.verb]
    # Titles come from the server, and whoever may edit there may write terminal escapes into them.
    return clean(f"{verb}: {step.what}" + (f": {step.why}" if step.why else ""))
