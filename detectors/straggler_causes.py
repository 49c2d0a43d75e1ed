"""What many ranks share is the application's: a stage, a pipeline's data, reading data; or nobody's: all wait."""

from __future__ import annotations

import numpy as np

from graynode.detectors.frames import Floats
from graynode.detectors.straggler import Cause, Limits, Straggler, Where
from graynode.detectors.straggler_view import View

_SURE_SIGMAS = 4.0


def of_application(view: View, limits: Limits) -> list[Straggler]:
    """Stages that compute longer than the others, pipelines whose data costs more, and reading of data."""
    return [*_stages(view, limits), *_pipelines(view, limits), *_varying(view, limits), *_reading(view, limits)]


def of_waiting(view: View, limits: Limits) -> list[Straggler]:
    """Everybody waits and nobody computes longer than its peers: ``unknown``."""
    total, wait = view.work.total, view.work.wait
    if total is None or wait is None:
        return []
    share = _median_share(wait, total)
    least = float(np.nanmin(share)) if np.isfinite(share).any() else 0.0
    if least < limits.wait_share:
        return []
    return [_said(view, "job", np.arange(len(view.work)), ("unknown", "all_wait"), None, {"least_wait_share": least})]


def _stages(view: View, limits: Limits) -> list[Straggler]:
    found = []
    for role in np.unique(view.roles.code[view.roles.code >= 0]):
        here = np.flatnonzero(view.roles.code == role)
        level = float(view.total.level[here[0]])
        if not level >= np.log1p(limits.role_level):
            continue
        told = len(np.unique(view.work.node[here])) > 1
        evidence = {f"{name}_excess": round(float(np.expm1(e.level[here[0]])), 4) for name, e in view.parts.items()}
        cause: Cause = "application" if told else "unknown"
        found.append(_said(view, "role", here, (cause, "stage_imbalance"), level, evidence))
    return found


def _pipelines(view: View, limits: Limits) -> list[Straggler]:
    if not view.separable or view.pipeline is None:
        return []
    found = []
    for code in np.unique(view.pipeline[view.pipeline >= 0]):
        here = np.flatnonzero(view.pipeline == code)
        shared, noise = float(view.total.shared[here[0]]), float(np.nanmedian(view.total.noise))
        if shared < max(np.log1p(limits.least_excess), _SURE_SIGMAS * noise):
            continue
        # All of it on one node: the node may be slow as well as its data long
        told = len(np.unique(view.work.node[here])) > 1
        found.append(_said(view, "pipeline", here, ("application" if told else "unknown", "shared_data"), shared, {}))
    return found


def _varying(view: View, limits: Limits) -> list[Straggler]:
    varies = view.total.varies
    if not view.separable or varies < limits.data_varies:
        return []
    everybody = np.arange(len(view.work))
    return [_said(view, "job", everybody, ("application", "data_varies"), None, {"varies": round(varies, 4)})]


def _reading(view: View, limits: Limits) -> list[Straggler]:
    total, reading = view.work.total, view.work.input
    if total is None or reading is None:
        return []
    share = _median_share(reading, total)
    here = np.flatnonzero(share >= limits.input_share)
    if not here.size:
        return []
    most = {"most_input_share": round(float(share[here].max()), 4)}
    return [_said(view, "job", here, ("application", "data_loading"), None, most)]


def _median_share(part: Floats, rest: Floats) -> Floats:
    known = np.isfinite(part) & np.isfinite(rest) & (part + rest > 0)
    share = np.where(known, part / np.where(known, part + rest, 1.0), np.nan)
    seen = np.asarray(known.any(axis=1))
    return np.where(seen, np.nanmedian(np.where(seen[:, None], share, 0.0), axis=1), np.nan)


def _said(
    view: View,
    where: Where,
    ranks: np.ndarray[tuple[int], np.dtype[np.int64]],
    verdict: tuple[Cause, str],
    log_excess: float | None,
    evidence: dict[str, float],
) -> Straggler:
    return Straggler(
        where=where,
        ranks=tuple(int(r) for r in view.work.rank[ranks]),
        nodes=tuple(int(n) for n in np.unique(view.work.node[ranks])),
        cause=verdict[0],
        reason=verdict[1],
        excess=None if log_excess is None else round(float(np.expm1(log_excess)), 4),
        confidence=0.5 if verdict[0] == "unknown" else 0.7,
        evidence=evidence,
    )
