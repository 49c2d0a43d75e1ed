"""Many nodes, one cause: told findings that share a place are one finding about the place, never forty about nodes.

In turn the place that explains most (``places``) takes its findings; what is left stays with its nodes, or is the
whole cluster's where it is a fifth of it, or ten nodes with something sudden that began within minutes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from graynode.detectors.advice import ADVICE
from graynode.detectors.base import Round
from graynode.detectors.places import NETWORK, Place, Places, places

Candidate = dict[str, Any]

NODES: Final = 5
PART: Final = 0.2
"""Five nodes and a fifth of the cluster: one cause, not many sick nodes."""
TOGETHER: Final = 10
WITHIN: Final = timedelta(minutes=5)
"""Ten nodes that begin by chance within five minutes are implausible at any fleet's fault rate."""
SUDDEN: Final = frozenset({
    "monitoring_blind", "driver_fault", "nvlink_fault", "link_down", "link_flap", "network_fault", "clock_skew",
    "power_brake",
})  # fmt: skip
"""What has a moment at which it began. What grows or is measured against a past (slow, hot, memory) seems to begin for
all when the watching begins: having begun together makes it no single cause, only a place that it is in does."""
_FEWEST: Final = 3
NAMED_NODES: Final = 50


def named(
    told: Sequence[Candidate], round_: Round, make: Callable[[Sequence[Candidate], Place, int], Candidate]
) -> list[Candidate]:
    """``told`` findings, those of one signal and cause that share a place replaced by what ``make`` makes of them.

    ``make`` gets the findings, the place, and of how many nodes the place is.
    """
    by_signal: dict[tuple[str, str], list[Candidate]] = defaultdict(list)
    for c in told:
        by_signal[str(c["signal"]), str(c["cause"])].append(c)
    kept: list[Candidate] = []
    known: dict[bool, Places] = {}
    for (_, cause), group in sorted(by_signal.items()):
        rest = group
        while len(_nodes(rest)) >= _FEWEST:
            ports = all(c.get("link") and not c.get("gpu_uuid") for c in rest)
            if ports not in known:
                known[ports] = places(round_, ports=ports, concerned=frozenset(_nodes(told)))
            taken, place, of = _explained(rest, known[ports], cause, round_.start)
            if place is None:
                break
            kept.append(make(taken, place, of))
            gone = {id(c) for c in taken}
            rest = [c for c in rest if id(c) not in gone]
        kept += rest
    return kept


def _explained(
    told: Sequence[Candidate], known: Places, cause: str, start: datetime
) -> tuple[list[Candidate], Place | None, int]:
    if cause in NETWORK:  # cables die one by one: what a switch has done began within minutes
        told = _together(told, start)
    concerned = [(str(c["node_id"]), str(c.get("link") or "")) for c in told]
    place = known.best(concerned, cause)
    if place is not None:
        ports = any(port for _, port in place.members)
        inside = place.members if ports else {(node, "") for node in place.nodes}
        taken = [c for c, m in zip(told, concerned, strict=True) if (m if ports else (m[0], "")) in inside]
        return taken, place, len(_nodes(taken)) if place.kind == "rail" else len(place.nodes)
    nodes, everyone = _nodes(told), known.everyone | _nodes(told)
    cluster = Place("cluster", str(told[0].get("cluster") or ""), frozenset((n, "") for n in everyone))
    if len(nodes) >= NODES and len(nodes) > PART * len(everyone):
        return list(told), cluster, len(everyone)
    together = _together(told, start) if cause in SUDDEN else []
    if len(_nodes(together)) >= TOGETHER:
        return together, cluster, len(everyone)
    return [], None, 0


def _together(told: Sequence[Candidate], start: datetime) -> list[Candidate]:
    """The most that began within minutes of each other."""
    ordered = sorted(told, key=lambda c: (c.get("since") or start, str(c["node_id"])))
    best: list[Candidate] = []
    first = 0
    for last, c in enumerate(ordered):
        while (c.get("since") or start) - (ordered[first].get("since") or start) > WITHIN:
            first += 1
        if last - first + 1 > len(best):
            best = ordered[first : last + 1]
    return best


def _nodes(told: Sequence[Candidate]) -> set[str]:
    return {str(c["node_id"]) for c in told}


def about(group: Sequence[Candidate], place: Place, of: int) -> Candidate:
    """What a finding about a place says, whoever the detector: subject, words, owner, evidence."""
    worst = group[0]
    nodes = sorted(_nodes(group))
    cluster = worst.get("cluster")
    where = "the cluster" if place.kind == "cluster" else place.words(len(nodes))
    what = "nodes of" if place.kind != "rail" else "nodes on"
    begins = (
        f"{len(nodes)} {what} {where} shifted at once"
        if place.kind == "rail"
        else f"{len(nodes)} of {of} {what} {where} shifted at once"
    )
    return {
        "cluster": cluster,
        "subject": place.kind,
        # No machine: a name of its own kind, so that nothing takes it for one and the store can place the row
        "node_id": f"{place.kind}:{place.name or cluster}",
        "node": place.words(len(nodes)) if place.kind != "cluster" else f"cluster {cluster}",
        "gpu_uuid": None,
        "link": None,
        "signal": worst["signal"],
        "cause": "monitoring_blind" if worst["cause"] == "monitoring_blind" else "fleet_shift",
        "since": min((c["since"] for c in group if c.get("since")), default=None),
        "message": f"{begins} ({worst['signal']}); worst: {worst['message']}",
        "action": _action(place, str(worst["cause"]), where),
        "evidence": {
            "nodes": nodes[:NAMED_NODES],
            "nodes_told": len(nodes),
            "nodes_seen": of,
            "shared": place.name or None,
            "of_cause": worst["cause"],
            "owner": "network" if worst["cause"] in NETWORK and place.kind in ("switch", "rail") else "platform",
            "title": f"{_TITLES[place.kind]}: {_words(str(worst['cause']))} on {len(nodes)} nodes",
            "next_step": "Do not take the nodes out one by one; find what they share first.",
        },
    }


_TITLES: Final = {
    "rack": "a whole rack", "domain": "a whole NVLink domain", "switch": "what hangs on one switch",
    "rail": "one port of many nodes", "job": "a whole job", "driver": "a driver version",
    "cluster": "many nodes at once",
}  # fmt: skip


def _words(cause: str) -> str:
    return ADVICE[cause].title if cause in ADVICE else cause


def _action(place: Place, cause: str, where: str) -> str:
    if place.kind == "rack":
        return f"Look at {where}: its cooling, power and top-of-rack switch; no node of it is sick by itself."
    if place.kind in ("switch", "rail"):
        return f"Look at {'the leaf switch of ' if place.kind == 'rail' else ''}{where}, not at its nodes."
    if place.kind == "domain":
        return f"Look at the NVLink switches and the fabric management of {where}."
    if place.kind == "job":
        return f"Look at what {where} does: its program or input has changed, no node of it is sick by itself."
    if place.kind == "driver":
        return f"Compare {where} with the version before on one node; stop the roll-out until it is understood."
    return f"Look for one cause that they share ({where}): a change of driver, network, cooling or job ({cause})"
