"""A Kubernetes cluster as a whole, from one machine: states of all nodes, and what waits in Kueue's queues.

Runs on one machine (``[kubernetes] cluster = true``); two would tell all twice. Rows about nodes
carry ``node_id`` ``kubernetes:<node>`` and the node's name; view ``machine_names`` has the machine that each agent
found itself to be. A job that waits has no node: it is told under ``kubernetes``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Final

from graynode.collectors.base import Machine, NoSource, Round, Row, Rows
from graynode.collectors.kubernetes.following import KUEUE
from graynode.collectors.kubernetes.jobs import Queued, queued_of
from graynode.collectors.kubernetes.objects import Node, Workload
from graynode.collectors.kubernetes.pods import controller
from graynode.collectors.kubernetes.settings import PATIENCE_S, Settings
from graynode.collectors.kubernetes.store import Store
from graynode.collectors.kubernetes.watch import Standing, Watch
from graynode.collectors.state_file import StateFile
from graynode.pipeline.schema import JOB_ENDED

_MOST_NODES: Final = 50_000
_MOST_WORKLOADS: Final = 100_000
_GOOD_WHEN_TRUE: Final = "Ready"
_CORDON: Final = "node.kubernetes.io/unschedulable"
_SAVE_S: Final = 60.0
GONE: Final = "no longer a node of the cluster"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node: its state as ``kubectl get nodes`` words it, and why."""

    name: str
    boot_id: str | None
    state: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A Workload of Kueue and the job that it is made of."""

    job_id: str
    namespace: str
    queued: Queued
    ended: datetime | None


def node_facts(node: Node) -> NodeFacts:
    """What is kept of a node. Conditions other than Ready are faults when they are true, as the API has it."""
    conditions = {c.type: c for c in node.status.conditions or ()}
    ready = conditions.get(_GOOD_WHEN_TRUE)
    words = {"True": "Ready", "False": "NotReady"}
    state = words.get(ready.status, "Unknown") if ready else "Unknown"
    reasons = [ready.reason] if ready and ready.status != "True" and ready.reason else []
    reasons += sorted(
        f"{c.type}: {c.reason}" if c.reason else c.type
        for c in conditions.values()
        if c.type != _GOOD_WHEN_TRUE and c.status == "True"
    )
    taints = [t for t in node.spec.taints or () if t.key != _CORDON]
    reasons += sorted(f"taint {t.key}{'=' + t.value if t.value else ''}:{t.effect}" for t in taints)
    if node.spec.unschedulable:
        state += ",SchedulingDisabled"
    boot_id = node.status.node_info.boot_id or None
    return NodeFacts(node.metadata.name, boot_id, state, "; ".join(reasons)[:400] or None)


def waiting_of(workload: Workload) -> Waiting:
    """What is kept of a Workload. The job is its owner; Kueue queues the object that people made."""
    meta, owner = workload.metadata, controller(workload.metadata)
    kind, name = (owner.kind, owner.name) if owner else ("Workload", meta.name)
    finished = [
        c.last_transition_time for c in workload.status.conditions or () if c.type == "Finished" and c.status == "True"
    ]
    job_id = f"{meta.namespace}/{kind.lower()}/{name}"
    return Waiting(job_id, meta.namespace, queued_of(workload), finished[0] if finished else None)


class KubernetesCluster:
    """``node_state`` rows and, where Kueue is installed, ``job`` rows of what waits, as they change; a restart tells
    nothing twice. Raises ``NoSource`` where there is no API server."""

    name: ClassVar[str] = "kubernetes_cluster"
    tables: ClassVar[tuple[str, ...]] = ("node_state", "job", "quality")

    def __init__(
        self,
        machine: Machine,
        settings: Settings | None = None,
        *,
        env: Mapping[str, str] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        first_wait_s: float = 1.0,
    ) -> None:
        self._machine, self._monotonic = machine, monotonic
        settings = settings or Settings()
        api = settings.connect(os.environ if env is None else env)
        if api is None:
            raise NoSource("no Kubernetes API server: not in a pod of a cluster, and kubernetes.api names none")
        watch = partial(Watch, api, first_wait_s=first_wait_s, monotonic=monotonic)
        self._nodes: Store[Node, NodeFacts] = Store(Node, node_facts, _MOST_NODES)
        self._queue: Store[Workload, Waiting] = Store(Workload, waiting_of, _MOST_WORKLOADS)
        self._watches = {"node_state": watch(("/api/v1/nodes",), self._nodes)}
        if settings.kueue:
            paths = tuple(f"{base}/workloads" for base in KUEUE)
            self._watches["job"] = watch(paths, self._queue)
        self._said: dict[str, tuple[str, str]] = {}
        self._state = StateFile(machine.state_dir / "kubernetes_cluster.json")
        kept = self._state.load()
        self._told: dict[str, list[Any]] = _entries(kept.get("nodes"))
        self._jobs: dict[str, list[Any]] = _entries(kept.get("jobs"))
        self._saved_at = monotonic()

    def collect(self, round_: Round) -> Rows:
        """What has changed; nothing but in rounds of the 10 s class."""
        if 10 not in round_.due:
            return {}
        rows: dict[str, list[Row]] = {"node_state": [], "job": [], "quality": []}
        for table, watch in self._watches.items():
            watch.start()
            standing = watch.standing
            self._say(table, standing, rows)
            if standing.listed:
                rows[table] += self._node_rows() if table == "node_state" else self._job_rows()
        if self._monotonic() - self._saved_at >= _SAVE_S:
            self._save()
        return {table: some for table, some in rows.items() if some}

    def close(self) -> None:
        """End the threads and keep what was told; twice is as good as once."""
        for watch in self._watches.values():
            watch.close()
        self._save()

    def _node_rows(self) -> Iterator[Row]:
        nodes = {node.name: node for node in self._nodes.facts().values()}
        for name, node in nodes.items():
            key = [node.state, node.reason, node.boot_id]
            before = self._told.get(name, [None, None, None])
            self._told[name] = key
            if before[:2] != key[:2]:
                yield {
                    "node_id": f"kubernetes:{name}", "node": name, "boot_id": node.boot_id,
                    "scheduler_state": node.state, "reason": node.reason, "who": "kubernetes",
                }  # fmt: skip
        for name in [told for told in self._told if told not in nodes]:
            del self._told[name]
            yield {"node_id": f"kubernetes:{name}", "node": name, "reason": GONE, "who": "kubernetes"}

    def _job_rows(self) -> Iterator[Row]:
        facts, ended = self._queue.take()
        for waiting, gone in [*((w, False) for w in facts.values()), *((w, True) for w in ended)]:
            queued = waiting.queued
            state = "cancelled" if gone and queued.state not in JOB_ENDED else queued.state
            key = [state, queued.reason, str(queued.admitted)]
            if self._jobs.get(waiting.job_id) == key or (gone and waiting.job_id not in self._jobs):
                continue
            if state in JOB_ENDED and waiting.job_id not in self._jobs:
                continue  # over before the agent saw it
            self._jobs[waiting.job_id] = key
            yield {
                "node_id": "kubernetes", "job_id": waiting.job_id, "account": waiting.namespace,
                "partition": queued.queue, "state": state, "reason": queued.reason, "queued_ts": queued.since,
                "allocated_ts": queued.admitted if state != "queued" else None,
                "end_ts": waiting.ended, "requeues": queued.requeues, "gpus": queued.gpus,
            }  # fmt: skip
        there = {waiting.job_id for waiting in facts.values()}
        self._jobs = {job: key for job, key in self._jobs.items() if job in there}

    def _say(self, table: str, standing: Standing, rows: dict[str, list[Row]]) -> None:
        if standing.failing_s is None:
            state, reason = ("measured", "the API server answers") if standing.listed else ("", "")
        elif standing.status == 404 and table == "job":
            state, reason = "unsupported", "Kueue is not installed"
        elif standing.failing_s >= PATIENCE_S or standing.refused:
            state = "not_permitted" if standing.refused else "stale" if standing.listed else "error"
            reason = standing.error
        else:
            return
        if state and self._said.get(table) != (state, reason):
            self._said[table] = (state, reason)
            said = {"table_name": table, "entity": self._machine.node_id, "field": "*", "state": state}
            rows["quality"].append({**said, "reason": f"kubernetes_cluster: {reason}"[:400]})

    def _save(self) -> None:
        self._saved_at = self._monotonic()
        self._state.save({"nodes": self._told, "jobs": self._jobs})


def _entries(kept: Any) -> dict[str, list[Any]]:  # noqa: ANN401 (a file's content)
    """Entries of a state file; those of another shape count as never told."""
    if not isinstance(kept, dict):
        return {}
    return {name: entry for name, entry in kept.items() if isinstance(entry, list) and len(entry) == 3}
