"""What is said of a rank or node that computes longer than its peers: the finding's columns, in a person's words."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from graynode.detectors.findings import Candidate
from graynode.detectors.frames import moment
from graynode.detectors.gpu_words import short
from graynode.detectors.straggler import REASONS, Straggler

_SURE: Final = 0.7
_TOLD: Final = 0.6
"""Confidences of ``straggler_ranks``: with 0.7 the data is told apart from the rank; with 0.6 it is not, but roles are
given and three peers are there. Less is a guess at the roles and never told."""
_NODE: Final = "Run a GEMM benchmark on each GPU of it between jobs, and look at its CPUs, memory and power capping"
_GPU: Final = "Run a GEMM benchmark on it between jobs; if it confirms, take the node out and open a vendor case"


def score(confidence: float, in_a_row: int, threshold: float) -> float:
    """Judgements in a row, up to twice the threshold. Where the data cannot be told apart twice as many are wanted; a
    guess stays at half of the threshold, watched and never told."""
    if confidence >= _SURE:
        return min(float(in_a_row), 2.0 * threshold)
    return min(in_a_row / 2.0, 2.0 * threshold if confidence >= _TOLD else threshold / 2.0)


def candidate(job: str, said: Straggler, ranks: pl.DataFrame, threshold: float) -> Candidate:
    """The finding about ``said`` of ``job``; ``ranks`` are the remembered rows of its ranks."""
    first = ranks.row(0, named=True)
    row, effect = int(str(ranks["row"].min())), float(said.excess or 0.0)
    alone = said.where == "rank" and first["gpu_uuid"] is not None
    numbers = [int(r) for r in said.ranks]
    seconds = float(ranks["busy_s"].list.median().median() or 0.0)  # type: ignore[arg-type]  # a number, in polars' words any
    lasting, peers = said.evidence.get("lasting"), said.evidence.get("peers")
    named = f"{short(first['gpu_uuid'])} on {first['node']}" if alone else f"{first['node']}"
    who = f"rank {numbers[0]}" if len(numbers) == 1 else f"all of its {len(numbers)} ranks ({numbers[0]}…)"
    compute = "computes" if len(numbers) == 1 else "compute"
    return {
        **{k: first[k] for k in ("cluster", "node_id", "node", "boot_id")},
        "gpu_uuid": first["gpu_uuid"] if alone else None,
        "subject": "gpu" if alone else "node",
        "cause": "slow_gpu",
        "signal": "slow_rank",
        "value": seconds,
        "peer_median": seconds / (1.0 + effect),
        "peers": peers,
        "unit": "s a step",
        "effect": effect,
        "score": score(said.confidence, row, threshold),
        "threshold": threshold,
        "p_value": said.evidence.get("p_value"),
        "since": moment(float(str(ranks["since_s"].min()))),
        "severity": "ticket",
        "message": f"{named}: {who} of job {job} {compute} {effect:.1%} longer than {peers} others of its role, "
        f"in {_share(lasting)} of its last steps",
        "action": _GPU if alone else _NODE,
        "evidence": {
            **{k: v for k, v in said.evidence.items() if v is not None},
            "job_id": job,
            "ranks": numbers[:64],
            "role": first["role"],
            "reason": REASONS[said.reason],
            "confidence": said.confidence,
            "in_a_row": row,
        },
    }


def _share(lasting: Any) -> str:  # noqa: ANN401 (a number or nothing, from evidence)
    return "most" if lasting is None else f"{lasting:.0%}"
