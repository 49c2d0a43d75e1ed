"""Two machines or agents under one ``node_id`` are seen; a restart, a reboot and a backlog are not that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import landing_kit
import pytest
from landing_kit import Log, gpu_row, message

from graynode.detectors.event_rules import from_events

Sent = tuple[float, int, int, str]
"""Second, epoch, sequence, boot."""


def events(folder: Path, sent: list[Sent], **settings: Any) -> list[dict[str, Any]]:
    """What is in ``event`` after one sample a message, each arriving a second after it was taken."""
    log = Log()
    for second, epoch, sequence, boot in sent:
        row = gpu_row(second, gpu=f"GPU-{boot}", boot_id=boot)
        log.add(message([row], sequence=sequence, epoch=epoch, sent=second), second + 1)
    rows = landing_kit.land(folder, log, **settings).read("event").sort("ts").to_dicts()
    return [row for row in rows if row["kind"] == "identity_conflict"]


def test_two_boots_that_go_on_at_once_are_two_machines(tmp_path: Path) -> None:
    """A cloned image: both send as one; it is said once, with both boots, and their GPUs' rows are all there."""
    sent = [(float(s), 7 if s % 2 else 9, s, "boot-a" if s % 2 else "boot-b") for s in range(16)]
    [event] = events(tmp_path, sent, chunks=[3, 7])
    assert (event["node_id"], event["source"]) == ("n1", "pipeline")
    assert "boot-a" in event["message"]
    assert "boot-b" in event["message"]
    facts = json.loads(event["attributes"])
    assert {tuple(facts["one"]), tuple(facts["other"])} == {(7, "boot-a"), (9, "boot-b")}


def test_two_agents_on_one_machine_are_seen_too(tmp_path: Path) -> None:
    """One boot, two state folders, two counts of starts."""
    sent = [(float(s), 3 if s % 2 else 12, s, "boot-a") for s in range(20)]
    [event] = events(tmp_path, sent)
    assert "agent starts" in event["message"]


def test_clones_whose_numbers_collide_are_seen_by_the_repeats(tmp_path: Path) -> None:
    """Both images held the same count of starts: what is dropped as a repeat was sent later than all before it."""
    sent = [(s + d, 5, s, boot) for s in range(20) for d, boot in ((0.0, "boot-a"), (0.5, "boot-b"))]
    [event] = events(tmp_path, sent)
    assert "new content" in event["message"]


def test_it_is_said_again_every_hour(tmp_path: Path) -> None:
    """So that an incident lives as long as the trouble."""
    sent = [(300.0 * s, 7 if s % 2 else 9, s, "boot-a" if s % 2 else "boot-b") for s in range(30)]
    assert len(events(tmp_path, sent)) == 3


@pytest.mark.parametrize(
    "sent",
    [
        [(float(s), 1 + s // 10, s % 10, "boot-a") for s in range(40)],  # restarts
        [(float(s), 1 + s // 10, s % 10, f"boot-{s // 10}") for s in range(40)],  # reboots
        # an agent killed before its mark sends the same again, under the number and the time of then
        [*((float(s), 1, s, "boot-a") for s in range(10)), *((float(s), 1, s, "boot-a") for s in range(5, 10)),
         *((float(s), 2, s, "boot-a") for s in range(10, 20))],
        # a clock that goes back at a reboot
        [*((s + 5000.0, 1, s, "boot-a") for s in range(5)), *((float(s), 2, s, "boot-b") for s in range(20))],
        # a batch of the old boot that lay somewhere, under a number not met yet
        [*((float(s), 1, s, "boot-a") for s in range(5)), *((100.0 + s, 2, s, "boot-b") for s in range(5)),
         (50.0, 1, 77, "boot-a"), (110.0, 2, 9, "boot-b")],
    ],
    ids=["restarts", "reboots", "sent again", "clock goes back", "an old batch"],
)  # fmt: skip
def test_one_machine_is_one_whatever_it_goes_through(tmp_path: Path, sent: list[Sent]) -> None:
    """Its boots and starts follow one another."""
    assert events(tmp_path, sent) == []


def test_reading_again_after_a_restart_says_nothing_twice(tmp_path: Path) -> None:
    """The event is stored with the offset of the message that showed it."""
    sent = [(float(s), 7 if s % 2 else 9, s, "boot-a" if s % 2 else "boot-b") for s in range(20)]
    assert len(events(tmp_path, sent)) == 1
    assert len(events(tmp_path, sent)) == 1


def test_it_becomes_a_ticket() -> None:
    """Nothing about that node can be believed, and nothing may be done to it, until each has its own id."""
    event = {**gpu_row(0), "kind": "identity_conflict", "event_id": "e", "source": "pipeline", "attributes": "{}"}
    [finding] = from_events([event])
    assert (finding["cause"], finding["severity"]) == ("monitoring_blind", "ticket")
    assert "node_id" in finding["action"]
