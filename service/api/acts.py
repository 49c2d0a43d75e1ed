"""What people say through the API: verdicts, acknowledgements, mutes. The same rows that the command line sends, signed
with the token's name (column ``who``); they reach the lake over the bus, as all others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

import msgspec
from litestar import post
from litestar.params import FromPath, JSONBody
from msgspec import Meta

from graynode.service import labels
from graynode.service.api.access import Caller
from graynode.service.api.asked import CallerHere, ServedHere
from graynode.service.api.incidents import IncidentId, revisions_of
from graynode.service.api.nodes import one_node
from graynode.service.api.problems import Problem
from graynode.service.api.state import Served
from graynode.service.config import ConfigError
from graynode.service.people import say

_ACT: Final = {"scope": "act"}
Why = Annotated[str, Meta(max_length=500)]


class LabelBody(msgspec.Struct, forbid_unknown_fields=True):
    """A verdict; ``true``: something was wrong."""

    verdict: Literal["true", "false", "unsure"]
    why: Why


class AckBody(msgspec.Struct, forbid_unknown_fields=True):
    """Why it is taken."""

    why: Why


class MuteBody(msgspec.Struct, forbid_unknown_fields=True):
    """How long (``2d``, ``12h``, ``1d12h``) and why."""

    for_: Annotated[str, Meta(max_length=20)] = msgspec.field(name="for")
    why: Why


class UnmuteBody(msgspec.Struct, forbid_unknown_fields=True):
    """Why the node is heard again."""

    why: Why


class Done(msgspec.Struct):
    """What was said, and by whom."""

    said: str
    who: str


@post("/api/v1/incidents/{incident_id:str}/label", opt=_ACT, sync_to_thread=True, status_code=200)
def label(served: ServedHere, caller: CallerHere, incident_id: IncidentId, data: JSONBody[LabelBody]) -> Done:
    """A verdict on an incident. It measures; nothing is trained by it."""
    id_ = _incident(served, incident_id)
    return _send(served, caller, lambda: labels.label_row(
        served.config, id_, data.verdict, why=_reason(data.why), by=caller.name, now=served.clock()
    ))  # fmt: skip


@post("/api/v1/incidents/{incident_id:str}/ack", opt=_ACT, sync_to_thread=True, status_code=200)
def ack(served: ServedHere, caller: CallerHere, incident_id: IncidentId, data: JSONBody[AckBody]) -> Done:
    """Take an incident: receivers hear of it again when it gets worse and when it is over."""
    id_ = _incident(served, incident_id)
    return _send(served, caller, lambda: labels.ack_row(
        served.config, id_, why=_reason(data.why), by=caller.name, now=served.clock()
    ))  # fmt: skip


@post("/api/v1/nodes/{node:str}/mute", opt=_ACT, sync_to_thread=True, status_code=200)
def mute(served: ServedHere, caller: CallerHere, node: FromPath[str], data: JSONBody[MuteBody]) -> Done:
    """Receivers are told nothing of a node for a while; what is found is stored all the same."""
    id_ = str(one_node(served, node)["node_id"])
    return _send(served, caller, lambda: labels.mute_row(
        served.config, id_, for_=data.for_, why=_reason(data.why), by=caller.name, now=served.clock()
    ))  # fmt: skip


@post("/api/v1/nodes/{node:str}/unmute", opt=_ACT, sync_to_thread=True, status_code=200)
def unmute(served: ServedHere, caller: CallerHere, node: FromPath[str], data: JSONBody[UnmuteBody]) -> Done:
    """The node is heard again."""
    id_ = str(one_node(served, node)["node_id"])
    return _send(served, caller, lambda: labels.mute_row(
        served.config, id_, why=_reason(data.why), end=True, by=caller.name, now=served.clock()
    ))  # fmt: skip


def _incident(served: Served, incident_id: str) -> str:
    return str(revisions_of(served, incident_id)[-1]["incident_id"])


def _reason(why: str) -> str:
    if not why.strip():
        raise Problem(400, "why: say it in a few words; whoever reads this later was not there")
    return why.strip()


def _send(served: Served, caller: Caller, make: Callable[[], labels.Said]) -> Done:
    try:
        table, row, sentence = make()
    except ConfigError as error:
        raise Problem(400, str(error).removeprefix("--")) from error
    try:
        say(served.config, [(table, row)], now=row["ts"])
    except ConfigError as error:
        raise Problem(503, f"nobody could be told: {error}", {"Retry-After": "10"}) from error
    return Done(sentence, caller.name)


ROUTES: Final[tuple[Any, ...]] = (label, ack, mute, unmute)
