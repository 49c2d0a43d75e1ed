"""The table ``[respond]`` of the configuration file: receivers, routes, and what all of them have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, field

from graynode.service.config_tables import Positive, Seconds, Section

Severity = Literal["page", "ticket", "digest"]


class Receiver(Section, frozen=True, kw_only=True):
    """What every receiver has. ``least``: the least severity that it is told.

    ``most_per_hour`` bounds its messages; what is beyond goes into one message about many. ``remind_h``: hours after
    which an open page that nobody has taken is told again, at most ``reminders`` times; 0 is never. ``canary``: it gets
    graynode's own heartbeat.
    """

    least: Severity = "ticket"
    timeout_s: Seconds = 10.0
    plain_http: bool = False
    most_per_hour: Positive = 600
    remind_h: Annotated[float, Meta(ge=0)] = 0.0
    reminders: Annotated[int, Meta(ge=0, le=100)] = 3
    canary: bool = False
    digest_at: str = "08:00"
    timezone: str = "UTC"


class Webhook(Receiver, frozen=True, kw_only=True):
    """One receiver. The secret is a Standard Webhooks secret (``whsec_…``) in a file.

    ``ca_file``: a private CA's certificates. ``plain_http`` permits http beyond loopback: anybody on the way reads it.
    """

    url: str
    secret_file: Path
    ca_file: Path | None = None


class Alertmanager(Receiver, frozen=True, kw_only=True):
    """The Alertmanagers of one cluster: ``urls`` without a path (``http://127.0.0.1:9093``); all of them are told.

    ``hold_s``: how long they go on firing when graynode has gone silent. ``authorization_file`` holds the value of the
    header ``Authorization``.
    """

    urls: Annotated[tuple[str, ...], Meta(min_length=1, max_length=10)]
    hold_s: Annotated[float, Meta(ge=180, le=86_400)] = 1800.0
    ca_file: Path | None = None
    authorization_file: Path | None = None
    most_per_hour: Positive = 6000


class Chat(Receiver, frozen=True, kw_only=True):
    """People's channels: ``urls_file`` has an apprise address a line (Slack, Teams, PagerDuty, mail …)."""

    urls_file: Path
    timeout_s: Seconds = 15.0
    most_per_hour: Positive = 30
    remind_h: Annotated[float, Meta(ge=0)] = 4.0
    picture: bool = True


class Route(Section, frozen=True, kw_only=True):
    """One line of the list: the first that fits decides, unless ``continue`` lets later ones add to it.

    ``severity``, ``cause``, ``cluster``, ``partition``, ``rack`` and ``owner`` are patterns (``memory_*``), one of
    which must fit; what is left out fits all. ``deliver``: page and ticket at once, digest in one message a day or an
    hour; left out, the incident's severity says. ``quiet_hours`` (``22:00-07:00``) and ``quiet_days`` in ``timezone``
    hold what is no page until they are over; pages too with ``quiet_pages``.
    """

    receivers: Annotated[tuple[str, ...], Meta(min_length=1)]
    name: str = ""
    severity: tuple[str, ...] = ()
    cause: tuple[str, ...] = ()
    cluster: tuple[str, ...] = ()
    partition: tuple[str, ...] = ()
    rack: tuple[str, ...] = ()
    owner: tuple[str, ...] = ()
    deliver: Severity | Literal[""] = ""
    quiet_hours: str = ""
    quiet_days: tuple[str, ...] = ()
    timezone: str = "UTC"
    quiet_pages: bool = False
    go_on: bool = field(name="continue", default=False)


class Respond(Section, frozen=True):
    """Who is told. ``page_url``: the status page, for links; ``runbook_url`` has ``{cause}`` where the cause goes.

    ``canary_s``: how often ``detect`` sends a heartbeat; ``places_every_s``: how often racks and partitions are read.
    """

    webhooks: dict[str, Webhook] = field(default_factory=dict)
    alertmanagers: dict[str, Alertmanager] = field(default_factory=dict)
    chats: dict[str, Chat] = field(default_factory=dict)
    routes: tuple[Route, ...] = ()
    page_url: str = ""
    runbook_url: str = ""
    canary_s: Annotated[float, Meta(ge=10, le=3600)] = 300.0
    places_every_s: Annotated[float, Meta(ge=1)] = 600.0
    metrics_listen: str = "127.0.0.1:9404"

    @property
    def receivers(self) -> dict[str, Receiver]:
        """All of them by name; a name that two kinds have is the configuration's mistake (``respond_make``)."""
        return {**self.webhooks, **self.alertmanagers, **self.chats}
