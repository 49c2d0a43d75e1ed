"""Messages to people: what they say, with the picture, by the services' own plugins, to local receivers."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import requests
from http_receiver import Answer, HttpReceiver, Request
from smtp_receiver import SmtpReceiver
from told_incidents import incident, later, over

from graynode.responders.address import UnsafeUrl
from graynode.responders.chat import Chat
from graynode.responders.message import Links, body, many, title
from graynode.responders.requests_watch import Seen, watched

PNG = b"\x89PNG\r\n\x1a\n" + b"x" * 50
LINKS = Links("https://gpu.example/", "https://docs.example/{cause}/")


def slow() -> dict[str, Any]:
    """An incident whose evidence has numbers."""
    entry = {
        "signal": "clock", "message": "clock under load fell", "value": 1395.0, "unit": "MHz", "baseline": 1980.0,
        "peer_median": 1978.0, "peers": 31, "count": 12, "since": "2026-11-30T11:00:00Z",
    }  # fmt: skip
    return incident(
        cause="slow_gpu", severity="ticket", title="n1: slow GPU", evidence=[entry], job_id="41277",
        wait_gpu_h_per_day=24.0, wait_basis="its own slowdown", due_ts="2026-12-01T12:00:00Z", action="Run a probe",
        next_step="Reseat it", owner="vendor",
    )  # fmt: skip


def json_url(receiver: HttpReceiver) -> str:
    return receiver.url.replace("http", "json", 1)


def test_the_message_says_what_where_since_when_why_and_what_to_do() -> None:
    """All that somebody needs who was asleep a minute ago."""
    told = slow()
    assert title(told) == "TICKET n1: slow GPU"
    assert body(told, {"rack": "r7", "partition": "train"}, LINKS).splitlines() == [
        "Where: node n1, GPU 0000:9b:00.0, partition train, rack r7, job 41277, cluster test",
        "Since: 2026-11-30 12:00 UTC",
        "Why we think so:",
        "- clock under load fell (12 times): measured 1395 MHz, own normal 1980, median of 31 peers 1978",
        "What to do: Run a probe Then: Reseat it Owner: vendor, until 2026-12-01 12:00 UTC.",
        "A day of waiting: about 24 GPU-hours (its own slowdown)",
        f"Look: graynode explain {told['incident_id'][:8]}",
        f"https://gpu.example/incidents/{told['incident_id']}",
        "https://docs.example/slow_gpu/",
    ]


def test_the_end_is_short_and_a_reminder_says_so() -> None:
    """Whoever was told of the beginning knows the rest."""
    first = incident()
    assert title(over(first)).startswith("RESOLVED n1: ")
    assert "over at 2026-11-30 12:10 UTC" in body(over(first), {}, LINKS)
    assert "What to do" not in body(over(first), {}, LINKS)
    assert title(later(first)).startswith("PAGE (more) n1: ")
    assert title(first, "reminder").startswith("STILL OPEN, not taken: PAGE n1: ")


def test_what_is_not_known_is_not_shown() -> None:
    """Nulls are no zeros and no words."""
    bare = {"incident_id": "i", "revision": 0, "state": "open", "severity": "page", "cause": "gpu_lost"}
    said = f"{title(bare)}\n{body(bare, {}, Links())}"
    assert "None" not in said
    assert said.splitlines()[0] == "PAGE gpu_lost"


def test_many_are_the_worst_first_and_counted() -> None:
    """A storm is one message of bounded length."""
    several = [incident(f"n{i}", severity="ticket") for i in range(30)] + [incident("bad", severity="page")]
    head, text = many(several, "the digest", Links())
    assert head == "31 incidents (the digest)"
    lines = text.splitlines()
    assert lines[0].startswith("- page: bad")
    assert len(lines) == 22
    assert lines[20] == "and 11 more"


def test_the_picture_goes_along_where_files_are_taken() -> None:
    """As PNG; the service's own form of the message has title, body and how bad it is."""
    with HttpReceiver(lambda *_: Answer(200)) as receiver:
        outcome = Chat([json_url(receiver)], links=LINKS, picture=lambda _: PNG).respond(slow())
        assert outcome.outcome == "done"
        said = receiver.requests[0].data
    assert said["title"] == "TICKET n1: slow GPU"
    assert said["type"] == "warning"
    assert said["message"].startswith("Where: node n1")
    (file,) = said["attachments"]
    assert (file["filename"], file["mimetype"], base64.b64decode(file["base64"])) == ("incident.png", "image/png", PNG)


def test_no_picture_is_no_hindrance() -> None:
    """Neither one that cannot be drawn nor one that the service does not take."""

    def answer(_: int, request: Request) -> Answer:
        return Answer(413 if request.data["attachments"] else 200)

    with HttpReceiver(answer) as receiver:
        assert Chat([json_url(receiver)]).respond(slow()).outcome == "done"
        chat = Chat([json_url(receiver)], picture=lambda _: PNG)
        assert [chat.respond(slow()).outcome for _ in range(2)] == ["failed", "done"]


def test_the_dashboards_picture_is_a_png() -> None:
    """What the service hands in draws the evidence; nothing to draw is no picture."""
    from graynode.service.respond_picture import picture

    drawn = picture(slow())
    assert drawn is not None
    assert drawn.startswith(b"\x89PNG")
    assert picture(incident(evidence=[])) is None


def test_each_address_is_told_once_whatever_becomes_of_the_others() -> None:
    """A channel that works does not hear it again because the other one does not."""
    with HttpReceiver(lambda *_: Answer(200)) as well, HttpReceiver(lambda n, _: Answer(500 if n < 2 else 200)) as ill:
        chat = Chat([json_url(well), json_url(ill)])
        outcomes = [chat.respond(slow()) for _ in range(3)]
        assert [o.outcome for o in outcomes] == ["failed", "failed", "done"]
        assert (len(well.requests), len(ill.requests)) == (1, 3)
        assert chat.respond(later(slow())).outcome == "done"
        assert len(well.requests) == 2


def test_mail_arrives_with_subject_text_and_picture() -> None:
    """By a mail server, as plain text that cannot become a header."""
    with SmtpReceiver() as server:
        url = f"mailto://127.0.0.1:{server.port}/?from=graynode@site.example&to=ops@site.example&mode=insecure&format=text"
        hostile = {**slow(), "title": "n1\r\nBcc: evil@site.example"}
        assert Chat([url], picture=lambda _: PNG).respond(hostile).outcome == "done"
        (mail,) = server.messages
    assert mail["To"].endswith("ops@site.example>") or mail["To"] == "ops@site.example"
    assert mail["Bcc"] is None
    assert str(mail["Subject"]).startswith("TICKET n1 Bcc: ")
    parts = {part.get_content_type(): part for part in mail.walk()}
    assert "Where: node n1" in str(parts["text/plain"].get_content())
    assert parts["image/png"].get_content() == PNG


def test_whatever_a_plugin_sends_is_held_to_the_rules() -> None:
    """Plugins make addresses of their own: what is not encrypted goes to this machine only, before a socket opens."""
    with watched(Seen(1.0)) as seen, pytest.raises(requests.RequestException, match="use https"):
        requests.post("http://192.0.2.1/hook", timeout=1)
    assert "use https" in seen.trouble


def test_requests_of_others_in_this_process_are_left_alone() -> None:
    """The watch is for what we send: somebody else's redirect is followed as ever."""
    with HttpReceiver() as other, HttpReceiver(lambda *_: Answer(307, {"location": other.url})) as receiver:
        Chat([json_url(receiver)]).respond(slow())
        requests.post(receiver.url, timeout=5)
        assert len(other.requests) == 1


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "address 1: is none that apprise knows"),
        ("slack://too/short", r"address 1 \(slack://…\): is none"),
        ("syslog://", "acts on this machine only"),
        ("dbus://", "acts on this machine only"),
        ("json://user:hunter2@alerts.example/x", r"address 1 \(json://…\): http beyond this machine"),
        ("json://169.254.169.254/latest", "link-local"),
        ("mailto://u:hunter2@mail.example?to=a@b.example", "use https"),
    ],
)
def test_addresses_that_are_refused(url: str, said: str) -> None:
    """By line and scheme; the rest of an address is a secret and is not repeated."""
    with pytest.raises(ValueError, match=said) as caught:
        Chat([url])
    assert "hunter2" not in str(caught.value)


def test_plain_http_where_somebody_has_decided_so() -> None:
    """For a closed network."""
    Chat(["json://alerts.example/x"], plain_http=True)
    with pytest.raises(UnsafeUrl):
        Chat(["json://alerts.example/x"])


def test_a_redirect_in_the_address_itself_is_not_believed() -> None:
    """Nor anything else that an address may say about how to be sent."""
    with HttpReceiver() as other, HttpReceiver(lambda *_: Answer(302, {"location": other.url})) as receiver:
        assert Chat([json_url(receiver) + "?redirect=yes&rto=900"]).respond(slow()).outcome == "failed"
        assert other.requests == []
