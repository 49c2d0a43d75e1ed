"""Nodes, partitions and reservations as ``scontrol -o show …`` tells them, the same in every version since 20."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from graynode.collectors.slurm.text import moment, records, word

_REASON: Final = re.compile(r"(?:^| )Reason=(.{0,1000}?) \[([^\]@\s]{0,100})@([^\]\s]{1,40})\]")


@dataclass(frozen=True, slots=True)
class Node:
    """One node. ``state`` as Slurm words it, flags joined by ``+``: ``IDLE+DRAIN``; ``*`` where it does not answer."""

    name: str
    host: str | None
    state: str
    reason: str | None
    who: str | None
    since: datetime | None
    """When the reason was given; Slurm does not say when a state began."""


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition and whether jobs may start in it: UP, DOWN, DRAIN or INACTIVE."""

    name: str
    state: str
    nodes: str


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes set aside for a time; with flag ``MAINT`` it is planned maintenance."""

    name: str
    start: datetime | None
    end: datetime | None
    nodes: str
    flags: str
    state: str


def parse_nodes(text: str) -> list[Node]:
    """The nodes of ``scontrol -o show node``; a line without name or state is passed over."""
    found: list[Node] = []
    for line in text.splitlines():
        for record in records(line):
            name, state = word(record.get("NodeName")), word(record.get("State"))
            if name and state:
                reason = _REASON.search(line)
                why, who, when = reason.groups() if reason else (None, None, None)
                host = word(record.get("NodeHostName"))
                found.append(Node(name, host, state[:200], why, who or None, moment(when)))
    return found


def parse_partitions(text: str) -> list[Partition]:
    """The partitions of ``scontrol -o show partition``."""
    return [
        Partition(r["PartitionName"], r.get("State", "UNKNOWN")[:40], (word(r.get("Nodes")) or "")[:4000])
        for r in records(text)
        if r.get("PartitionName")
    ]


def parse_reservations(text: str) -> list[Reservation]:
    """The reservations of ``scontrol -o show reservation``; it says in words when there is none."""
    return [
        Reservation(
            r["ReservationName"], moment(r.get("StartTime")), moment(r.get("EndTime")),
            (word(r.get("Nodes")) or "")[:4000], (word(r.get("Flags")) or "")[:400], r.get("State", "UNKNOWN")[:40],
        )
        for r in records(text)
        if r.get("ReservationName")
    ]  # fmt: skip


def parse_config(text: str) -> dict[str, str]:
    """``scontrol show config`` as a mapping; it aligns its ``=``."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}
