"""What a day of waiting is expected to cost, and until when the owner should have moved.

A synchronous job runs at its slowest rank's speed, so a slow GPU costs its share of all GPUs of the job. A node that
cannot be used costs its GPUs. An outage that a collective does not survive costs the work since the last checkpoint
and the restart. Where nothing tells the loss it is ``None``, and ``basis`` says so: no figure is better than a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from graynode.detectors.context import Work

Entry = Mapping[str, Any]

_OUT: Final = frozenset({"gpu_lost", "driver_fault", "recovery_requested"})
_ENDS_JOBS: Final = frozenset({"outage_7s", "outage_30s", "flap"})
_TICKET_GPU_H: Final = 24.0
_TICKET_AT_LEAST_H: Final = 4.0


@dataclass(frozen=True, slots=True)
class Terms:
    """A site's terms. ``prices``: money per GPU-hour by a part of the model's name, ``*`` for any other.

    ``restart_h``: hours of work lost when a job dies: half a checkpoint interval and the restart, an assumption.
    ``due_h``: hours from the opening to the next step, by severity.
    """

    prices: Mapping[str, float] = field(default_factory=dict)
    currency: str = ""
    restart_h: float = 0.5
    due_h: Mapping[str, float] = field(default_factory=lambda: {"page": 1.0, "ticket": 24.0, "digest": 168.0})

    def price(self, model: str | None) -> float | None:
        """Money per GPU-hour of a model: the longest name that is part of it; ``None`` without any."""
        named = [n for n in self.prices if n != "*" and model is not None and n.lower() in model.lower()]
        if named:
            return self.prices[max(named, key=len)]
        return self.prices.get("*")


@dataclass(frozen=True, slots=True)
class Waiting:
    """GPU-hours and money per day of waiting, and what they rest on."""

    gpu_h_per_day: float | None
    cost_per_day: float | None
    basis: str


def waiting(cause: str, entries: Iterable[Entry], work: Work, terms: Terms) -> Waiting:
    """The expected cost of a day of waiting with an incident of one node."""
    gpu_h, basis = _gpu_hours(cause, list(entries), work, terms)
    price = terms.price(work.model)
    if gpu_h is None:
        return Waiting(None, None, basis)
    if price is None:
        return Waiting(gpu_h, None, f"{basis}; no price is configured for {work.model or 'this model'}")
    return Waiting(gpu_h, gpu_h * price, f"{basis}, at {price:g} {terms.currency or 'units'} per GPU-hour")


def due(
    severity: str, opened: datetime, gpu_h_per_day: float | None, entries: Iterable[Entry], terms: Terms
) -> datetime:
    """Until when the next step should be taken.

    A ticket's time is shorter where waiting is dear: it may cost one GPU's day, but no less than four hours are given.
    An entry's ``due_h`` (a forecast that runs out) shortens it too.
    """
    hours = terms.due_h.get(severity, 168.0)
    if severity == "ticket" and gpu_h_per_day:
        hours = min(hours, max(_TICKET_AT_LEAST_H, 24.0 * _TICKET_GPU_H / gpu_h_per_day))
    forecast = [float(e["due_h"]) for e in entries if isinstance(e.get("due_h"), int | float)]
    return opened + timedelta(hours=max(0.0, min([hours, *forecast])))


def reckoned(
    told: Mapping[str, Any], due_before: datetime | None, entries: Iterable[Entry], work: Work, terms: Terms
) -> dict[str, Any]:
    """What a revision (its ``ts``, ``state``, ``severity``, ``cause``) says of the cost of waiting and of what is due.

    The date never moves away: ``due_before`` stands unless the new one is sooner.
    """
    seen = list(entries)
    cost = waiting(str(told["cause"]), seen, work, terms)
    severity = "page" if told.get("grouped_under") else str(told["severity"])  # told under a page, and no less urgent
    wanted = due(severity, told["ts"], cost.gpu_h_per_day, seen, terms)
    before = due_before if told["state"] == "updated" else None
    return {
        "job_id": work.job_id,
        "wait_gpu_h_per_day": cost.gpu_h_per_day,
        "wait_cost_per_day": cost.cost_per_day,
        "currency": terms.currency or None if cost.cost_per_day is not None else None,
        "wait_basis": cost.basis,
        "due_ts": None if told["state"] == "resolved" else min(before or wanted, wanted),
    }


def _gpu_hours(cause: str, entries: list[Entry], work: Work, terms: Terms) -> tuple[float | None, str]:
    whole_job = work.job_gpus is not None and any(e.get("of_cause") == "slow_gpu" for e in entries)
    if cause == "slow_gpu" or (cause == "fleet_shift" and whole_job):
        return _slowed(entries, work)
    if cause in _OUT and any(e.get("hold") for e in entries):
        if work.gpus is None:
            return None, "how many GPUs the node has is not known"
        return 24.0 * work.gpus, f"the node's {work.gpus} GPUs stand still until this is done"
    if any(e.get("signal") in _ENDS_JOBS for e in entries):
        if work.job_gpus is None:
            return None, "no job is known on this port's node"
        lost, each = work.job_gpus * terms.restart_h, f"{terms.restart_h:g} h of work"
        return lost, f"if it ends the job of {work.job_gpus} GPUs once a day and each time {each} are lost"
    return None, "what waiting costs is not known for this cause"


def _slowed(entries: list[Entry], work: Work) -> tuple[float | None, str]:
    effects = [float(e["effect"]) for e in entries if e.get("effect") is not None and 0 < float(e["effect"]) < 1]
    if not effects:
        return None, "how much slower it is has not been measured"
    worst = max(effects)
    if work.job_gpus is None:
        return 24.0 * worst, f"{worst:.1%} of one GPU; no job is known on it"
    return (
        24.0 * worst * work.job_gpus,
        f"all {work.job_gpus} GPUs of the job run {worst:.1%} slower, if it is synchronous",
    )
