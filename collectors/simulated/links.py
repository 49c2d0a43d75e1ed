"""Ports of a simulated fleet: when each was down, and what its counters say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from graynode.collectors.simulated.fleet import RELOAD_S, Fleet
from graynode.collectors.simulated.noise import Array, generator
from graynode.collectors.simulated.signals import Counter, Grid
from graynode.collectors.simulated.steps import Jumps

IB_GBPS: Final = 400.0
ETH_GBPS: Final = 100.0
_PACKET_BYTES: Final = 4096.0
_TRAINING_S: Final = 2.0
"""Shortest outage: a port that lost its link needs about two seconds of training (stated guess)."""


class Outages:
    """Every outage of every port, in whole seconds, in order of port and time."""

    def __init__(self, fleet: Fleet) -> None:
        found: list[tuple[int, int, int]] = []
        for f in fleet.faults:
            if f.kind == "link_down":
                found.append((f.link, round(f.start), round(min(f.end, 1e12))))
            elif f.kind == "link_flap":
                found += _flaps(
                    fleet, f.link, f.start, min(f.end, fleet.horizon_s), f.size, float(f.extra.get("outage_s", 3.0))
                )
        table = np.array(sorted(found), np.int64).reshape(-1, 3)
        self.link, self.start, self.end = table[:, 0], table[:, 1], table[:, 2]
        # Sorted like its starts: ports of a fleet have outages that do not overlap.
        self.fallen = Jumps([(int(a), float(b), 1.0) for a, b in zip(self.link, self.start, strict=True)])
        self.risen = Jumps([(int(a), float(b), 1.0) for a, b in zip(self.link, self.end, strict=True)])

    def touching(self, start: float, end: float) -> Array:
        """Numbers of the outages that touch a stretch of time."""
        return np.nonzero((self.start < end) & (self.end >= start))[0]


def _flaps(
    fleet: Fleet, link: int, start: float, end: float, per_hour: float, mean_s: float
) -> list[tuple[int, int, int]]:
    rng = generator(fleet.spec.seed, 5000 + link)
    found, t = [], start
    while (t := t + max(rng.exponential(3600.0 / per_hour), 15.0)) < end:
        lasts = max(_TRAINING_S, min(rng.gamma(4.0, mean_s / 4.0), 60.0))
        found.append((link, round(t), round(t + lasts)))
        t += lasts
    return found


@dataclass(frozen=True, slots=True)
class LinkState:
    """What ports show on a grid, each of shape (windows, links). ``outage_s`` is null (NaN) where there is none."""

    up: Array
    down_s: Array
    downs: Array
    outage_s: Array
    carrier_changes: Counter
    link_downed: Counter
    recoveries: Counter
    symbol_errors: Counter
    tx_bytes: Counter
    tx_packets: Counter


def read(fleet: Fleet, outages: Outages, grid: Grid) -> LinkState:
    """State and counters of every port. ``down_s`` and ``downs`` are since the sample before the window's first."""
    windows, ports = len(grid.start), fleet.spec.per_node + 1
    up = np.ones((windows, fleet.links), bool)
    down, downs, longest = (np.zeros((windows, fleet.links)) for _ in range(3))
    ends = grid.start + grid.length - 1
    for i in outages.touching(grid.edges[0] - 1, grid.edges[-1]):
        link, a, b = int(outages.link[i]), int(outages.start[i]), int(outages.end[i])
        within = np.clip(np.minimum(ends, b) - np.maximum(grid.start - 1, a), 0, None)
        down[:, link] += within
        downs[:, link] += (a > grid.start - 1) & (a <= ends)
        touched = (a <= ends) & (b > grid.start - 1)
        longest[touched, link] = np.maximum(longest[touched, link], np.minimum(ends, b)[touched] - a)
        up[(a <= ends) & (b > ends), link] = False
    links = np.arange(fleet.links)[None, :]
    node = fleet.node_of_link[None, :]
    t = grid.edges[:, None] - 1.0
    boot = fleet.boots.at(node, grid.edges[1:, None] - 1.0)
    reset = _last_boot(fleet, boot)
    fallen = _since(outages.fallen, links, t, reset)
    risen = _since(outages.risen, links, t, reset)
    sent = _traffic(fleet, grid, reset, ports)
    return LinkState(
        up, down, downs, longest,
        Counter(fallen.delta + risen.delta, fallen.last + risen.last),
        Counter(fallen.delta, np.minimum(fallen.last, 255.0)),
        risen, Counter(np.floor(fallen.delta * 3), np.floor(fallen.last * 3)),
        sent, Counter(np.floor(sent.delta / _PACKET_BYTES), np.floor(sent.last / _PACKET_BYTES)),
    )  # fmt: skip


def _last_boot(fleet: Fleet, step: Array) -> Array:
    """Start of the boot that a step belongs to: a driver reload leaves a port's counters alone."""
    boots = fleet.boots
    begins = boots.columns["silent_s"] != RELOAD_S
    last = np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))
    out: Array = boots.start[last][step]
    return out


def _since(jumps: Jumps, links: Array, t: Array, reset: Array) -> Counter:
    total = jumps.total(links, t)
    return Counter(np.diff(total, axis=0), total[1:] - jumps.total(links, reset))


def _traffic(fleet: Fleet, grid: Grid, reset: Array, ports: int) -> Counter:
    """Bytes of each rail (that of its GPU), and a steady trickle on Ethernet."""
    per_node, nodes = fleet.spec.per_node, fleet.spec.nodes
    t = grid.edges[:, None] - 1.0
    gpus = np.arange(fleet.gpus)[None, :]
    upto = fleet.load.integral("ib_rate", fleet.load.at(gpus, t), t)
    rails = reset.reshape(-1, nodes, ports)[:, :, :per_node].reshape(len(grid.start), -1)
    base = fleet.load.integral("ib_rate", fleet.load.at(gpus, rails), rails)
    delta, last = (np.zeros((len(grid.start), nodes, ports)) for _ in range(2))
    delta[:, :, :per_node] = np.diff(upto, axis=0).reshape(-1, nodes, per_node)
    last[:, :, :per_node] = (upto[1:] - base).reshape(-1, nodes, per_node)
    delta[:, :, per_node] = 2.5e6 * grid.length
    last[:, :, per_node] = 2.5e6 * (t[1:] - reset.reshape(-1, nodes, ports)[:, :, per_node])
    return Counter(np.floor(delta.reshape(len(grid.start), -1)), np.floor(last.reshape(len(grid.start), -1)))
