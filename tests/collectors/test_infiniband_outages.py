"""Down time: sums, longest pieces and what nobody saw, from a port that is made to go up and down."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_files import Ports, checked, node, round_at

from graynode.collectors.base import Row
from graynode.collectors.infiniband import Infiniband
from graynode.collectors.outages import Seen, next_look

UP, DOWN = "4: ACTIVE", "1: DOWN"


class Story:
    """One port watched each second while its state follows a string of ``+`` (up) and ``-`` (down)."""

    def __init__(self, folder: Path, boot_id: str = "boot-1") -> None:
        self.machine = node(folder, boot_id=boot_id)
        self.ports = Ports(self.machine.sys)
        self.second, self.downed, self._before = 0, 0, "+"
        self.collector = Infiniband(self.machine)
        self.rows: list[Row] = []
        self.events: list[Row] = []
        self._first = True

    def play(self, states: str, *, watched: bool = True) -> None:
        for state in states:
            self.downed += state == "-" and self._before == "+"
            self._before = state
            phys = "5: LinkUp" if state == "+" else "2: Polling"
            self.ports.rdma(state=UP if state == "+" else DOWN, phys=phys, link_downed=self.downed)
            if watched:
                self.look()
            self.second += 1

    def look(self) -> None:
        found = self.collector.collect(round_at(self.second, None if self._first else 1.0))
        checked(found, Infiniband.tables)
        self._first = False
        self.rows.extend(found.get("link", []))
        self.events.extend(found.get("event", []))

    def restart(self, *, kill: bool = False) -> None:
        """The agent ends, orderly or not, and a new one begins."""
        if not kill:
            self.collector.close()
        self.collector, self._first = Infiniband(self.machine), True

    def sum(self, field: str) -> float:
        return sum(row[field] or 0 for row in self.rows)

    def longest(self) -> float:
        return max(row["outage_s"] or 0 for row in self.rows)

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.events]


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    made = Story(tmp_path)
    yield made
    made.collector.close()


def test_nine_seconds_in_pieces_eight_at_once_and_thirty_one_are_three_things(tmp_path: Path) -> None:
    """Sum and longest piece tell a flapping port from one long outage, whichever is longer in sum."""
    told = {}
    for name, states in {
        "pieces": "++" + "-+" * 3 + "--+" * 3 + "++",
        "eight": "++" + "-" * 8 + "++",
        "long": "++" + "-" * 31 + "++",
    }.items():
        story = Story(tmp_path / name)
        story.play(states)
        told[name] = (story.sum("down_s"), story.longest(), story.sum("downs"))
        story.collector.close()
    assert told == {"pieces": (9, 2, 6), "eight": (8, 8, 1), "long": (31, 31, 1)}


def test_an_outage_grows_from_row_to_row_and_is_told_once_more_at_its_end(story: Story) -> None:
    """The running length is in every row, the whole length in the row that sees the port up again, then nothing."""
    story.play("+---++")
    assert [row["outage_s"] for row in story.rows] == [0, 0, 1, 2, 3, 0]
    assert [row["down_s"] for row in story.rows] == [0, 0, 1, 1, 1, 0]
    assert story.kinds() == ["link_down", "link_up"]
    assert "3 s" in story.events[1]["message"]


@pytest.mark.parametrize("kill", [False, True])
def test_an_outage_that_runs_while_the_agent_restarts_is_one_piece(story: Story, kill: bool) -> None:
    """The port's own counter did not move: it was down all the time, and no second is counted twice."""
    story.play("++" + "-" * 5)
    story.play("-" * 20, watched=False)
    story.restart(kill=kill)
    story.play("-" * 6 + "+")
    assert story.longest() == 31
    assert story.sum("down_s") == 31
    assert (story.sum("unseen_s"), story.sum("downs")) == (0, 1)
    assert story.kinds() == ["link_down", "link_up"]


def test_what_happened_while_the_agent_was_away_is_unseen_where_the_counter_moved(story: Story) -> None:
    """Up and down again meanwhile: the length of the pieces is unknown, and is said to be."""
    story.play("++---")
    story.play("-" * 10 + "+" * 10 + "-" * 5, watched=False)
    story.restart()
    story.play("---+")
    assert story.sum("unseen_s") == 26
    assert story.longest() == 3  # the piece after the gap; the one before had come to 2
    assert story.sum("downs") == 2
    assert story.sum("down_s") == 5


def test_a_port_that_stayed_up_while_the_agent_was_away_has_nothing_unseen(story: Story) -> None:
    """Up at both ends and the counter the same: it was up."""
    story.play("+" * 11)
    story.play("+" * 100, watched=False)
    story.restart()
    story.play("++")
    assert (story.sum("unseen_s"), story.sum("down_s"), story.kinds()) == (0, 0, [])


def test_a_flap_between_two_looks_is_counted_by_the_counter(story: Story) -> None:
    """Up at both looks, but the counter moved: one down of unknown length below a second, and both events."""
    story.play("++")
    story.downed += 1
    story.play("++")
    assert (story.sum("downs"), story.sum("down_s")) == (1, 0)
    assert story.kinds() == ["link_down", "link_up"]


def test_a_port_that_was_never_up_is_no_outage(story: Story) -> None:
    """A spare port is down for ever and nobody is told; its down time is null, not zero."""
    story.play("-" * 15)
    assert story.events == []
    assert {row["state"] for row in story.rows} == {"down"}
    assert {row["down_s"] for row in story.rows} == {None}


def test_a_port_switched_off_by_a_person_is_disabled_and_ends_its_outage(story: Story) -> None:
    """Administratively down is no fault: no event, no down time, and coming back later is no recovery."""
    story.play("++")
    story.ports.rdma(state=DOWN, phys="3: Disabled", link_downed=0)
    for _ in range(5):
        story.look()
        story.second += 1
    story.play("++")
    assert [row["state"] for row in story.rows] == ["active"] * 2 + ["disabled"] * 5 + ["active"] * 2
    assert story.sum("down_s") == 0
    assert story.events == []


def test_a_port_switched_off_while_down_is_expected_again_only_after_it_was_up(story: Story) -> None:
    """The outage ends without a recovery; down after that is a port that somebody is working on."""
    story.play("+---")
    story.ports.rdma(state=DOWN, phys="3: Disabled", link_downed=1)
    story.look()
    story.second += 1
    story.play("--")
    assert story.kinds() == ["link_down"]
    assert [row["outage_s"] for row in story.rows] == [0, 0, 1, 2, 3, None, None]
    story.play("+-")
    assert story.kinds() == ["link_down", "link_down"]


def test_a_port_that_vanishes_is_down_until_it_is_back(story: Story) -> None:
    """The device is gone: an event, a row that goes on saying down, an end of its inventory, and a return."""
    story.ports.net()
    story.play("++")
    story.ports.remove("mlx5_0")
    for _ in range(4):
        story.look()
        story.second += 1
    story.play("+")
    rows = [row for row in story.rows if row["link"] == "mlx5_0/1"]
    assert [row["state"] for row in rows] == ["active"] * 2 + ["down"] * 4 + ["active"]
    assert sum(row["down_s"] for row in rows) == 4
    assert story.kinds() == ["link_down", "link_up"]
    assert "vanished" in story.events[0]["message"]


def test_event_ids_come_from_the_counter_so_that_a_killed_agent_tells_nothing_twice(tmp_path: Path) -> None:
    """The same fall of the same port is the same event, whoever reads it; the next fall is another."""
    first, second = Story(tmp_path / "a"), Story(tmp_path / "b")
    first.play("++-")
    second.play("+++++-+-")
    ids = [event["event_id"] for event in second.events if event["kind"] == "link_down"]
    assert first.events[0]["event_id"] == ids[0]
    assert len({event["event_id"] for event in second.events}) == 3
    for story in (first, second):
        story.collector.close()


def test_after_a_reboot_a_port_known_to_have_been_up_is_down_without_an_event(tmp_path: Path) -> None:
    """Counters of another boot prove nothing and links train after a boot; the down time runs all the same."""
    before = Story(tmp_path)
    before.play("+++")
    before.collector.close()
    after = Story(tmp_path, boot_id="boot-2")
    after.second = 300
    after.play("-" * 10 + "+")
    after.collector.close()
    assert after.sum("down_s") == 10
    assert after.kinds() == ["link_up"]


@given(st.text("+-", min_size=1, max_size=60))
def test_seconds_down_are_the_looks_that_saw_it_down(states: str) -> None:
    """Each second seen down counts once; the longest piece is the longest run; the rest is up."""
    seen, downs = Seen("active", {"link_downed": 0}, None, expected=True), 0
    changes = []
    for before, state in itertools.pairwise("+" + states + "+"):
        downs += (before, state) == ("+", "-")
        seen, change = next_look(seen, "down" if state == "-" else "active", {"link_downed": downs}, 1.0)
        changes.append(change)
    runs = [len(run) for run in states.replace("+", " ").split()]
    assert sum(change.down_s or 0 for change in changes) == states.count("-")
    assert sum(change.downs or 0 for change in changes) == len(runs)
    assert max(change.outage_s or 0 for change in changes) == max(runs, default=0)
    assert sum(change.unseen_s or 0 for change in changes) == 0
