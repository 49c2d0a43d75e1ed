"""What becomes of revisions at one receiver over hours and days: held, bundled, reminded, over, restarted."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from finding_rows import T0
from hypothesis import given, settings
from hypothesis import strategies as st
from told_incidents import incident, later, over

from graynode.pipeline.bus import Partition, Received
from graynode.pipeline.schema import INCIDENTS
from graynode.responders.base import Outcome
from graynode.responders.hours import QuietHours
from graynode.responders.routes import Route, Routes
from graynode.service.incident_bus import to_message
from graynode.service.respond_book import Book
from graynode.service.respond_delivery import Delivery
from graynode.service.respond_desk import Desk
from graynode.service.respond_tables import Receiver

LEAST = {"r": "digest"}
PLAIN = Routes((), LEAST)
NIGHT = QuietHours.parse("18:00-08:00", "UTC")


class People:
    """What people say, without a bus."""

    def __init__(self) -> None:
        self.muted_until: datetime | None = None
        self.takers: dict[str, str] = {}
        self.heard: list[str] = []

    def spared(self, _: Mapping[str, Any], now: datetime) -> tuple[str, datetime] | None:
        return ("muted", self.muted_until) if self.muted_until is not None and now < self.muted_until else None

    def because(self, incident: Mapping[str, Any], now: datetime) -> str:
        taker = self.takers.get(incident["incident_id"])
        return f"taken by {taker}" if taker and incident["state"] == "updated" else ""

    def taken(self, incident: Mapping[str, Any]) -> str:
        return self.takers.get(incident["incident_id"], "")

    def told(self, incident: Mapping[str, Any]) -> None:
        self.heard.append(incident["incident_id"])


class Site:
    """One receiver with a clock that is moved by hand; what it is told, and the rows of ``action``."""

    name = "webhook"

    def __init__(self, routes: Routes = PLAIN, **terms: Any) -> None:
        self.now = T0
        self.told: list[tuple[datetime, str, tuple[str, ...]]] = []
        self.reminders: list[int] = []
        self.rows: list[dict[str, Any]] = []
        self.revisions: list[dict[str, Any]] = []
        self.people = People()
        self._routes, self._terms = routes, Receiver(**terms)
        self._there: list[Received] = []
        self.start()

    def start(self) -> None:
        """Start, or start anew with nothing but what the bus has."""
        book = Book()
        for revision in self.revisions:
            book.note(revision)
        if self.rows:
            book.actions["webhook:r"] = [dict(row) for row in self.rows]
        desk = Desk("r", self._terms, self._routes, self.people)  # type: ignore[arg-type]
        desk.restore(book, "webhook:r", self.now)
        self.desk = desk
        self.delivery = Delivery("r", self, self, self, desk, clock=lambda: self.now)  # type: ignore[arg-type]

    def hear(self, *revisions: dict[str, Any]) -> None:
        """These come off the bus."""
        for revision in revisions:
            self.revisions.append(revision)
            self._there.append(
                Received(to_message(revision, 1, 1, self.now), Partition(INCIDENTS, 0), len(self.revisions), 0)
            )
        self.delivery.step(0.0)

    def wait(self, minutes: float, step: float = 1.0) -> None:
        """Time passes."""
        end = self.now + timedelta(minutes=minutes)
        while self.now < end:
            self.now += timedelta(minutes=step)
            self.delivery.step(0.0)

    # --- as a consumer, a responder and a publisher ---

    def poll(self, *_: Any, **__: Any) -> list[Received]:
        there, self._there = self._there, []
        return there

    def assigned(self) -> frozenset[Partition]:
        return frozenset({Partition(INCIDENTS, 0)})

    def commit(self, _: Any) -> None:
        pass

    def respond(self, incident: dict[str, Any], kind: str = "revision") -> Outcome:
        word = "over" if incident["state"] == "resolved" and kind == "revision" else kind
        self.told.append((self.now, word, (incident["node"],)))
        if kind == "reminder":
            self.reminders.append(incident["reminder"])
        return Outcome("done", "")

    def bundle(self, incidents: tuple[dict[str, Any], ...], why: str) -> Outcome:
        self.told.append((self.now, f"bundle: {why}", tuple(sorted(i["node"] for i in incidents))))
        return Outcome("done", "")

    def actions(self, rows: list[dict[str, Any]]) -> None:
        self.rows += rows

    def words(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(word, nodes) for _, word, nodes in self.told]


def ticket(node: str = "n1", **other: Any) -> dict[str, Any]:
    return incident(node, severity="ticket", **other)


def test_quiet_hours_end_with_one_message_about_what_they_held() -> None:
    """At eight in the morning; a page in between is told at once."""
    site = Site(Routes((Route("all", ("r",), {}, quiet=NIGHT),), LEAST))
    site.now = T0 + timedelta(hours=7)
    site.hear(ticket("n1"), ticket("n2"), incident("n3"))
    assert site.words() == [("revision", ("n3",))]
    assert [r["outcome"] for r in site.rows] == ["held", "held", "done"]
    site.wait(14 * 60)
    assert site.told[1:] == [(T0 + timedelta(hours=20), "bundle: quiet hours are over", ("n1", "n2"))]


def test_one_that_was_held_is_told_by_itself() -> None:
    """A message about many is for many."""
    site = Site(Routes((Route("all", ("r",), {}, quiet=NIGHT),), LEAST))
    site.now = T0 + timedelta(hours=7)
    site.hear(ticket())
    site.wait(14 * 60)
    assert site.words() == [("revision", ("n1",))]


def test_what_gets_worse_in_quiet_hours_is_told_at_once_and_not_again() -> None:
    """It waits no longer with the others."""
    site = Site(Routes((Route("all", ("r",), {}, quiet=NIGHT),), LEAST))
    site.now, first = T0 + timedelta(hours=7), ticket()
    site.hear(first)
    site.hear(later(first, severity="page"))
    site.wait(14 * 60)
    assert site.words() == [("revision", ("n1",))]


def test_the_digest_is_one_message_a_day() -> None:
    """All since the last one, also what is over already; nothing where nothing was."""
    site = Site(Routes((Route("all", ("r",), {}, deliver="digest"),), LEAST), digest_at="08:00")
    first = ticket("n1")
    site.hear(first, ticket("n2"))
    site.hear(over(first))
    site.wait(3 * 24 * 60, step=10)
    assert site.told == [
        (T0 + timedelta(hours=20), "bundle: the digest of 2026-12-01 08:00 UTC", ("n1", "n2")),
    ]
    assert {r["outcome"] for r in site.rows} == {"held", "done"}


def test_the_end_is_said_once_to_those_who_were_told() -> None:
    """Who never heard that it began hears nothing of its end; who heard, hears it once."""
    site, first = Site(), ticket()
    site.hear(over(first))
    assert site.told == []
    site.hear(first, over(first), over(first))
    assert site.words() == [("revision", ("n1",)), ("over", ("n1",))]
    site.start()
    site.hear(over(first))
    assert len(site.told) == 2, "also after a restart"


def test_the_end_is_told_though_the_routes_have_changed_since() -> None:
    """Those who were told are known by what was told, not by what the routes say now."""
    site, first = Site(), ticket()
    site.hear(first)
    site._routes = Routes((Route("other", ("x",), {}),), {"r": "digest", "x": "digest"})
    site.start()
    site.hear(later(first), over(first))
    assert site.words()[1:] == [("over", ("n1",))]


def test_an_open_page_that_nobody_has_taken_is_told_again_and_not_for_ever() -> None:
    """Every four hours, three times at most; a ticket never."""
    site = Site(remind_h=4.0, reminders=3)
    site.hear(incident("n1"), ticket("n2"))
    site.wait(48 * 60)
    assert [(at - T0, word) for at, word, _ in site.told[2:]] == [
        (timedelta(hours=4 * n), "reminder") for n in (1, 2, 3)
    ]  # fmt: skip
    assert site.reminders == [1, 2, 3]
    assert [r["kind"] for r in site.rows if r["kind"] == "remind"] == ["remind"] * 3


def test_reminders_are_counted_over_a_restart_and_end_with_the_incident() -> None:
    """The bus knows how many there were."""
    site, first = Site(remind_h=4.0, reminders=3), incident()
    site.hear(first)
    site.wait(5 * 60)
    site.start()
    site.wait(4 * 60)
    assert site.reminders == [1, 2]
    site.hear(over(first))
    site.wait(24 * 60)
    assert site.reminders == [1, 2]


def test_whoever_takes_it_or_mutes_it_ends_the_reminders() -> None:
    """A taken page is somebody's; a muted one is nobody's for now."""
    site, first = Site(remind_h=4.0), incident()
    site.hear(first)
    site.people.takers[first["incident_id"]] = "Kim"
    site.wait(24 * 60, step=10)
    assert site.reminders == []
    site.people.takers.clear()
    site.people.muted_until = site.now + timedelta(hours=5)
    site.wait(4 * 60, step=10)
    assert site.reminders == []
    site.wait(2 * 60, step=10)
    assert site.reminders == [1]


def test_news_begins_the_wait_for_a_reminder_anew() -> None:
    """Who has just heard of it needs no reminding."""
    site, first = Site(remind_h=4.0), incident()
    site.hear(first)
    site.wait(3 * 60)
    site.hear(later(first))
    site.wait(3 * 60)
    assert site.reminders == []
    site.wait(61)
    assert site.reminders == [1]


def test_what_a_mute_held_is_told_when_it_is_over() -> None:
    """If it is still open; what began and ended within it is nobody's news; the end of what was told is told."""
    site = Site()
    before, still, gone = ticket("n1"), ticket("n2"), ticket("n3")
    site.hear(before)
    site.people.muted_until = site.now + timedelta(hours=2)
    site.hear(still, gone, over(before))
    site.hear(over(gone))
    assert len(site.told) == 1
    assert [(r["node"], r["outcome"]) for r in site.rows[1:]] == [
        ("n2", "held"), ("n3", "held"), ("n1", "held"), ("n3", "refused"),
    ]  # fmt: skip
    site.wait(121)
    assert site.words()[1:] == [("bundle: no longer muted", ("n1", "n2"))]


def test_a_mute_that_is_ended_early_frees_at_once() -> None:
    """Its end is looked up, not remembered."""
    site = Site()
    site.people.muted_until = site.now + timedelta(days=2)
    site.hear(ticket())
    site.people.muted_until = None
    site.wait(1)
    assert site.words() == [("revision", ("n1",))]


def test_a_storm_is_bounded_grouped_and_complete() -> None:
    """A hundred in a minute: no hour has more messages than the bound, and everything is in one of them, soon."""
    site = Site(most_per_hour=30)
    for number in range(100):
        site.hear(ticket(f"n{number}"))
        site.now += timedelta(seconds=0.5)
    site.wait(60)
    assert {node for _, _, nodes in site.told for node in nodes} == {f"n{i}" for i in range(100)}
    assert len(site.told) <= 30
    waited = max(at for at, _, _ in site.told) - T0
    assert waited <= timedelta(minutes=7)
    assert [r["outcome"] for r in site.rows].count("held") == 100 - 18
    assert {r["incident_id"] for r in site.rows if r["outcome"] == "done"} == {
        r["incident_id"] for r in site.revisions
    }  # fmt: skip


def test_a_page_has_room_where_a_ticket_waits() -> None:
    """What is kept for messages about many is the pages' as well."""
    site = Site(most_per_hour=10)
    site.hear(*(ticket(f"n{i}") for i in range(8)))
    site.hear(incident("worst"))
    assert site.words()[-1] == ("revision", ("worst",))


@pytest.mark.parametrize("most", [1, 2, 3])
def test_the_smallest_bounds_hold_too(most: int) -> None:
    """And still nothing is lost."""
    site = Site(most_per_hour=most)
    site.hear(*(ticket(f"n{i}") for i in range(5)))
    site.wait(180)
    assert {node for _, _, nodes in site.told for node in nodes} == {f"n{i}" for i in range(5)}
    _bounded(site, most)


def test_what_was_held_goes_on_after_a_restart() -> None:
    """The digest that was due while nobody ran goes out at the start; quiet hours and the bound are as they were."""
    site = Site(Routes((Route("all", ("r",), {}, deliver="digest"),), LEAST))
    site.hear(ticket("n1"), ticket("n2"))
    site.now += timedelta(hours=21)
    site.start()
    site.wait(1)
    assert site.words() == [("bundle: the digest of 2026-12-01 09:01 UTC", ("n1", "n2"))]
    site.start()
    site.wait(48 * 60, step=30)
    assert len(site.told) == 1


def test_a_restart_tells_nothing_twice() -> None:
    """A revision that comes again from the bus is known by its row of ``action``."""
    site, first = Site(), ticket()
    site.hear(first, later(first))
    site.start()
    site.hear(first, later(first))
    assert len(site.told) == 2


def _bounded(site: Site, most: int) -> None:
    times = [at for at, _, _ in site.told]
    for i, at in enumerate(times):
        assert sum(at - other < timedelta(hours=1) for other in times[: i + 1]) <= most


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "more", "worse", "over", "restart", "mute", "take", "wait"]),
        st.integers(0, 5),
        st.integers(0, 600),
    ),
    max_size=30,
)


@settings(max_examples=40)
@given(
    steps=STEPS,
    most=st.sampled_from([1, 4, 30]),
    deliver=st.sampled_from(["", "digest", "ticket"]),
    quiet=st.booleans(),
)
def test_whatever_happens_nothing_is_lost_doubled_or_beyond_the_bound(
    steps: list[tuple[str, int, int]], most: int, deliver: Any, quiet: bool
) -> None:
    """Storms, restarts, mutes and quiet hours in any order: in the end it is known what is open and what is over."""
    routes = Routes((Route("all", ("r",), {}, deliver=deliver, quiet=NIGHT if quiet else None),), LEAST)
    site = Site(routes, most_per_hour=most)
    latest: dict[int, dict[str, Any]] = {}
    for what, number, minutes in steps:
        _do(site, latest, what, number)
        site.wait(minutes, step=max(minutes / 4, 0.1))
    site.people.muted_until = None
    site.wait(4 * 24 * 60, step=30)
    _bounded(site, most)
    known = {node: word for _, word, nodes in site.told for node in nodes}
    told = site.desk.ledger
    for revision in latest.values():
        if revision["state"] != "resolved":
            assert revision["node"] in known, "what is open is known"
        else:
            assert not told.has(revision["incident_id"]), "who knew of it knows that it is over"
    ends = [nodes for _, word, nodes in site.told if word == "over"]
    resolved = {r["incident_id"] for r in site.revisions if r["state"] == "resolved"}
    assert len(ends) <= sum(r["state"] == "resolved" for r in site.revisions)
    assert not (ends and not resolved)
    assert site.desk.held == {}


def _do(site: Site, latest: dict[int, dict[str, Any]], what: str, number: int) -> None:
    current = latest.get(number)
    is_open = current is not None and current["state"] != "resolved"
    minutes = (site.now - T0).total_seconds() / 60
    if what == "open" and not is_open:
        first = ticket(f"n{number}") if current is None else later(current, minutes, state="open", resolved_ts=None)
        latest[number] = first
        site.hear(first)
    elif current is not None and is_open and what in ("more", "worse", "over"):
        made = over(current, minutes) if what == "over" else later(current, minutes)
        latest[number] = made | ({"severity": "page"} if what == "worse" else {})
        site.hear(latest[number])
    elif what == "restart":
        site.start()
    elif what == "mute":
        site.people.muted_until = site.now + timedelta(hours=number)


def test_times_are_read_as_utc() -> None:
    """The clock of the tests is the one of the incidents."""
    assert T0.tzinfo is UTC
