"""What events say without statistics: kernel log and NVML events in, findings out. The hard-event path runs this.

Lines of one GPU and number within 5 s are one episode (a GPU that prints an Xid a thousand
times has had one fault). What an NVIDIA number means is data (``graynode.detectors.policy``); the other kinds are
in the table ``_KINDS`` below. An Xid of an application (13, 31, 43, 45 …) is kept for the digest and tells nobody,
unless it stays on one GPU whoever runs there (``repeats``).
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

import polars as pl

from graynode.detectors import event_kinds
from graynode.detectors.placements import Placements
from graynode.detectors.policy import Policy, Verdict, shipped
from graynode.detectors.repeats import Repeats, Suspicion, codes
from graynode.detectors.service_kinds import SERVICE_KINDS, about
from graynode.pipeline.schema import stable_id

Event = Mapping[str, Any]
"""A row of table ``event``."""
Finding = dict[str, Any]

DETECTOR: Final = "rules"
VERSION: Final = 1
_EPISODE: Final = timedelta(seconds=5)
_WITNESS: Final = timedelta(minutes=10)
_REMEMBERED: Final = 20_000
_OFF_BUS: Final = 79
_OF_GPUS: Final = frozenset({
    "xid", "gpu_off_bus", "gpu_lost", "gpu_hung", "gpu_reset_required", "gpu_returned", "nvml_blind", "nvml_back",
    "gsp", "nvrm",
})  # fmt: skip
"""Kinds whose PCI address is a GPU's."""


def _in_time(event: Event) -> tuple[datetime, str]:
    return event["ts"], str(event.get("event_id"))


class EventRules:
    """Findings of events, with the little memory that episodes and second witnesses need (bounded)."""

    def __init__(self, policy: Policy | None = None) -> None:
        self._policy = policy or shipped()
        self._lines: OrderedDict[tuple[str, ...], datetime] = OrderedDict()
        self._off_bus: OrderedDict[str, datetime] = OrderedDict()
        self._placements, self._repeats = Placements(), Repeats(codes(self._policy))

    def placed(self, jobs: Iterable[Mapping[str, Any]]) -> None:
        """Rows of table ``job``: which job had a GPU decides whether an application's error is one."""
        self._placements.note(jobs)

    def remember(self, events: Iterable[Event], jobs: Sequence[Mapping[str, Any]] = ()) -> None:
        """Past events and job rows, after a restart: what they mean for later ones is kept, and nothing is found."""
        self.placed(jobs)
        then = Placements(_REMEMBERED)
        then.note(jobs)
        for event in sorted(events, key=_in_time):
            self._again(event, _attributes(event), then)

    def replayed(self, events: Iterable[Event], jobs: Iterable[Mapping[str, Any]]) -> list[Finding]:
        """``findings`` of a recorded stretch: at each event only the job rows up to its time are known."""
        waiting, made = deque(sorted(jobs, key=lambda row: row["ts"])), list[Finding]()
        for event in sorted(events, key=_in_time):
            while waiting and waiting[0]["ts"] <= event["ts"]:
                self.placed([waiting.popleft()])
            made += self.findings([event])
        self.placed(waiting)
        return made

    def findings(self, events: pl.DataFrame | Iterable[Event]) -> list[Finding]:
        """One finding per episode, in order of time. Contrary evidence (``clears``) comes as findings too."""
        rows = events.iter_rows(named=True) if isinstance(events, pl.DataFrame) else events
        made: list[Finding] = []
        running: dict[tuple[str, ...], Finding] = {}
        for event in sorted(rows, key=_in_time):
            facts = _attributes(event)
            verdict = self._judge(event, facts)
            if verdict is None:
                continue
            key = (*_key(event), about(facts))
            if not self._same_episode(key, event["ts"]):
                running[key] = _finding(event, verdict, facts)
                made.append(running[key])
                made += self._stays(event, facts)
            elif key in running:
                _one_more_line(running[key])
        return made

    def _again(self, event: Event, facts: Mapping[str, Any], then: Placements | None = None) -> Suspicion | None:
        if event.get("kind") != "xid" or facts.get("facility"):
            return None
        job = (then or self._placements).at(str(event["node_id"]), event.get("gpu_uuid"), event["ts"])
        return self._repeats.note(event, job, facts)

    def _stays(self, event: Event, facts: Mapping[str, Any]) -> list[Finding]:
        """An application's error that different jobs have on this GPU alone."""
        suspicion = self._again(event, facts)
        return [] if suspicion is None else [_one_gpu(event, suspicion)]

    def _same_episode(self, key: tuple[str, ...], ts: datetime) -> bool:
        before = self._lines.get(key)
        self._lines[key] = ts
        self._lines.move_to_end(key)
        while len(self._lines) > _REMEMBERED:
            self._lines.popitem(last=False)
        return before is not None and timedelta(0) <= ts - before <= _EPISODE

    def _judge(self, event: Event, facts: Mapping[str, Any]) -> Verdict | None:
        kind, code = event.get("kind"), event.get("code")
        if kind == "gpu_off_bus" or (kind == "xid" and code == _OFF_BUS):
            self._off_bus[str(event["node_id"])] = event["ts"]
            while len(self._off_bus) > _REMEMBERED:
                self._off_bus.popitem(last=False)
        said = self._meaning(event, kind, code, facts)
        return event_kinds.told_by_a_program(said) if said is not None and facts.get("facility") else said

    def _meaning(self, event: Event, kind: Any, code: Any, facts: Mapping[str, Any]) -> Verdict | None:  # noqa: ANN401
        if kind == "xid" and code is not None:
            return self._policy.xid(int(code), facts)
        if kind == "sxid" and code is not None:
            return self._policy.sxid(int(code), facts)
        if kind == "gpu_off_bus":
            return None if facts.get("after_xid") else self._policy.xid(_OFF_BUS)
        if kind == "gpu_lost":
            return self._lost(event, facts)
        return event_kinds.KINDS[kind](facts) if kind in event_kinds.KINDS else None

    def _lost(self, event: Event, facts: Mapping[str, Any]) -> Verdict:
        """NVML alone may have lost its view, not the GPU: one more witness is asked for."""
        said = self._off_bus.get(str(event["node_id"]))
        near = said is not None and abs(event["ts"] - said) <= _WITNESS
        if near or facts.get("kernel_log") or facts.get("pci"):  # the collector has asked them, and says what they say
            lost = self._policy.xid(_OFF_BUS)
            return event_kinds.verdict(
                "GPU lost: NVML and a second witness agree", "gpu_lost", "page", lost.action, hold=True
            )
        blind = event_kinds.verdict(
            "NVML does not answer for a GPU that no second witness calls lost",
            "monitoring_blind",
            "ticket",
            "Find out whether the GPU or only its monitoring is gone: look for it in lspci and the kernel log.",
            hold=True,
        )
        return replace(blind, disagree={"NVML": "the GPU is lost", "kernel log and PCI bus": "say nothing of it"})


def from_events(events: pl.DataFrame | Iterable[Event], policy: Policy | None = None) -> list[Finding]:
    """Findings of these events alone, without memory of earlier ones."""
    return EventRules(policy).findings(events)


def is_clearing(finding: Mapping[str, Any]) -> bool:
    """Whether a finding only says that something is over."""
    return bool(finding.get("signal", "").startswith("clear_"))


# --- rows ---


def _key(event: Event) -> tuple[str, ...]:
    entity = event.get("pci_bus_id") or event.get("gpu_uuid") or ""
    return (
        str(event["node_id"]),
        str(event.get("kind")),
        str(event.get("code")),
        str(entity),
        str(event.get("source")),
    )


def _attributes(event: Event) -> dict[str, Any]:
    raw = event.get("attributes")
    if isinstance(raw, Mapping):
        return dict(raw)
    try:
        parsed = json.loads(raw or "{}")
    except (ValueError, RecursionError):
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _signal(event: Event, verdict: Verdict) -> str:
    kind = str(event.get("kind"))
    if verdict.clears:
        return f"clear_{kind}"
    if kind in SERVICE_KINDS:
        return f"{kind}_{about(_attributes(event))}"
    return f"{kind}_{event['code']}" if kind in ("xid", "sxid") else kind


def _subject(event: Event) -> str:
    if event.get("gpu_uuid") or event.get("kind") in _OF_GPUS:
        return "gpu" if event.get("gpu_uuid") or event.get("pci_bus_id") else "node"
    return "switch" if event.get("kind") == "sxid" else "node"


def _finding(event: Event, verdict: Verdict, facts: Mapping[str, Any]) -> Finding:
    entity = event.get("pci_bus_id") or event.get("gpu_uuid") or ""
    signal = _signal(event, verdict)
    return {
        **{key: event.get(key) for key in ("ts", "cluster", "node_id", "node", "boot_id", "gpu_uuid")},
        "finding_id": stable_id("finding", event.get("cluster"), event["node_id"], DETECTOR, event.get("event_id")),
        "detector": DETECTOR,
        "version": VERSION,
        "subject": _subject(event),
        "cause": verdict.cause or None,
        "signal": signal,
        "value": 1.0,
        "unit": "lines",
        "since": event["ts"],
        "severity": verdict.severity,
        "message": f"{verdict.title}{f' on {entity}' if entity else ''}{_process(event)}",
        "action": verdict.action or None,
        "evidence": json.dumps(_evidence(event, verdict, facts), ensure_ascii=False, sort_keys=True),
        "live": True,
    }  # fmt: skip


def _process(event: Event) -> str:
    if event.get("pid") is None:
        return ""
    return f"; process {event.get('process') or '?'} ({event['pid']})"


def _evidence(event: Event, verdict: Verdict, facts: Mapping[str, Any]) -> dict[str, Any]:
    if verdict.clears:
        return {"clears": list(verdict.clears), "new_boot": verdict.new_boot, "pci_bus_id": event.get("pci_bus_id")}
    more: dict[str, Any] = {
        "pci_bus_id": event.get("pci_bus_id"),
        "action_source": verdict.action_source,
        "owner": verdict.owner,
        "next_step": verdict.next_step or None,
        "hold": verdict.hold,
        "lines": 1,
        "raw": str(event.get("raw") or "")[:400] or None,
        "source": event.get("source"),
        "catalogue_action": verdict.bucket or None,
        "disagree": dict(verdict.disagree) if verdict.disagree else None,
        "details": dict(facts) or None,
    }
    if event.get("ts_quality") not in (None, "exact"):
        more["ts_quality"] = event["ts_quality"]
    return {k: v for k, v in more.items() if v is not None}


def _one_gpu(event: Event, suspicion: Suspicion) -> Finding:
    said = event_kinds.verdict(
        suspicion.words(),
        "unusual",
        "ticket",
        "Suspect the GPU, not the programs: take it out after its job and run the vendor's field diagnostic on it.",
    )
    made = _finding(event, said, {})
    more = json.loads(made["evidence"]) | {
        "action_source": "NVIDIA's Xid guide and NVSentinel: the same GPU again asks for the field diagnostic",
        "jobs": list(suspicion.jobs),
        "next_step": "Run one of these jobs on another node: clean there, it clears the program.",
        "title": "application errors that stay on one GPU",
    }
    return made | {
        "finding_id": stable_id("finding", event.get("cluster"), event["node_id"], "repeats", event.get("event_id")),
        "signal": "app_xid_one_gpu",
        "value": float(len(suspicion.jobs)),
        "unit": "jobs",
        "since": suspicion.since,
        "evidence": json.dumps(more, ensure_ascii=False, sort_keys=True),
    }


def _one_more_line(finding: Finding) -> None:
    more = json.loads(finding["evidence"])
    more["lines"] = more.get("lines", 1) + 1
    finding["value"] = float(more["lines"])
    finding["evidence"] = json.dumps(more, ensure_ascii=False, sort_keys=True)
