"""Which pod has which GPU of this node, and whose job it is: the kubelet's answer joined with the API server's.

The kubelet (PodResources API) is exact about devices and knows no more of a pod than its name; the API server knows the
rest. Where the kubelet may not be asked, the control groups of the GPUs' processes stand in for it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, ClassVar

from graynode.collectors.base import Machine, NoSource, Round, Row, Rows, utc_now
from graynode.collectors.context import GpuKey, JobContext
from graynode.collectors.kubernetes.cgroup import pod_of
from graynode.collectors.kubernetes.devices import Known, by_number, gpu_minors, gpus_of
from graynode.collectors.kubernetes.following import Following
from graynode.collectors.kubernetes.groups import Groups
from graynode.collectors.kubernetes.jobs import Changes, Placed, Queued, job_row, placements
from graynode.collectors.kubernetes.kubelet import Kubelet, Unreachable
from graynode.collectors.kubernetes.objects import Node
from graynode.collectors.kubernetes.pods import CONFIG_HASH, PodFacts, only_named
from graynode.collectors.kubernetes.settings import PATIENCE_S, Settings, node_name
from graynode.collectors.kubernetes.watch import Standing
from graynode.collectors.kubernetes.wire import Devices
from graynode.collectors.kubernetes.workload import Work
from graynode.collectors.state_file import StateFile
from graynode.collectors.sysfs import text_of

_PodKey = tuple[str, str]


class Kubernetes:
    """Placements for the job context every 10 s; ``job`` rows as they change; this node's name there in ``inventory``.

    A source that fails leaves its last knowledge standing for ``settings.keep_s``, then the placements are withdrawn;
    ``quality`` says both. Raises ``NoSource`` where there is neither a kubelet nor an API server.
    """

    name: ClassVar[str] = "kubernetes"
    tables: ClassVar[tuple[str, ...]] = ("job", "inventory", "quality")
    every_s: ClassVar[int] = 10

    def __init__(
        self,
        machine: Machine,
        context: JobContext | None = None,
        settings: Settings | None = None,
        *,
        env: Mapping[str, str] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = utc_now,
        first_wait_s: float = 1.0,
    ) -> None:
        env = os.environ if env is None else env
        self._machine, self._context, self._monotonic = machine, context or JobContext(), monotonic
        self._settings = s = settings or Settings()
        api = s.connect(env)
        if api is None and not s.socket.parent.is_dir():
            raise NoSource(f"no kubelet ({s.socket.parent} does not exist) and not in a pod of a cluster")
        self._kubelet = Kubelet(s.socket, s.deadline_s, monotonic=monotonic)
        self._node_name = node_name(s.node_name, env, machine.node)
        follow = partial(Following, first_wait_s=first_wait_s, monotonic=monotonic, now=now)
        self._following = follow(api, self._node_name, s.labels, kueue=s.kueue) if api else None
        self._held: dict[_PodKey, frozenset[GpuKey]] = {}
        self._held_at: float | None = None
        self._allocatable: list[Devices] | None = None
        self._minors: Mapping[int, str] = {}
        self._groups, self._changes = Groups(), Changes()
        self._quality: dict[tuple[str, str, str], tuple[str, str]] = {}
        self._state = StateFile(machine.state_dir / "kubernetes.json")
        kept = self._state.load()
        self._changes.restore(kept)
        self._name_told: Any = kept.get("name")

    def collect(self, round_: Round) -> Rows:
        """Nothing but in rounds of the 10 s class."""
        if 10 not in round_.due:
            return {}
        if self._following is not None:
            self._following.start()
        rows: dict[str, list[Row]] = {"job": [], "inventory": [], "quality": []}
        problem = self._ask_kubelet(slow=60 in round_.due)
        self._say_kubelet(problem, rows)
        if self._api_usable(rows):
            self._place(problem, rows)
        else:
            self._context.place(self.name, {})
            self._context.set_aliases(self.name, {})
        if self._following is not None and self._following.seen.node is not None:
            self._tell_name(self._following.seen.node, rows)
        self._state.save({**self._changes.kept(), "name": self._name_told})
        return {table: some for table, some in rows.items() if some}

    def close(self) -> None:
        """End the thread; twice is as good as once."""
        if self._following is not None:
            self._following.close()

    @property
    def tally(self) -> dict[str, int]:
        """Objects of the API server that were not taken: beyond the bound of what is kept, or no such objects."""
        if self._following is None:
            return {}
        store = self._following.store
        return {"object_left_out": store.left_out, "object_undecodable": store.undecodable}

    # --- what is known ------------------------------------------------------------------------------------

    def _ask_kubelet(self, *, slow: bool) -> Unreachable | str | None:
        """Take the kubelet's answer; what is wrong with it."""
        try:
            held = self._kubelet.held()
        except Unreachable as problem:
            return problem
        if slow:
            with suppress(Unreachable):  # what was known holds
                self._allocatable = self._kubelet.allocatable()
        slices = self._following.seen.slices if self._following else {}
        if by_number(held) and (slow or not self._minors):
            self._minors = gpu_minors(self._machine.proc)
        known = Known(self._minors, self._context.mig, slices)
        self._held, unknown = {}, list[str]()
        for container in held:
            gpus, unmatched = gpus_of(container, known)
            unknown += unmatched
            key = (container.namespace, container.pod)
            if gpus or unmatched:
                self._held[key] = self._held.get(key, frozenset()) | gpus
        self._held_at = self._monotonic()
        if self._following is not None:
            self._following.want(self._held)
        return f"no GPU is known for {', '.join(sorted(unknown)[:8])}" if unknown else None

    def _api_usable(self, rows: dict[str, list[Row]]) -> bool:
        """Whether the pods are known well enough to say whose the GPUs are; false withdraws what was said."""
        if self._following is None:
            return True
        standing = self._following.standing
        where = ("job", self._machine.node_id, "*")
        refused = self._following.seen.refused
        if refused:
            what = f"{', '.join(sorted(refused))} may not be read, so what is above is not known"
            where_id = ("job", self._machine.node_id, "job_id")
            self._say(where_id, "not_permitted", f"{what}: {min(refused.values())}", rows)
        if standing.failing_s is None:
            if standing.listed:
                self._say(where, "measured", "the API server answers", rows)
            return standing.listed
        if standing.failing_s >= PATIENCE_S or standing.refused:
            lost = standing.failing_s > self._settings.keep_s or not standing.listed
            state = "not_permitted" if standing.refused else "lost" if lost else "stale"
            if self._quality.get(where, ("", ""))[0] != state:  # its error's words may change each time
                self._say(where, state, f"{standing.error}; {self._until(standing, lost=lost)}", rows)
        if standing.listed:
            return standing.failing_s <= self._settings.keep_s
        return standing.refused  # the kubelet's names are all that there will be

    def _until(self, standing: Standing, *, lost: bool) -> str:
        if standing.refused and not standing.listed:
            return "jobs are named after their pods"
        return "no job is told" if lost else f"what was known is kept for {self._settings.keep_s:.0f} s"

    def _gpus(self, facts: Mapping[str, PodFacts], problem: Unreachable | str | None) -> dict[str, frozenset[GpuKey]]:
        """GPUs by pod uid: by the kubelet now, or by its last answer and the processes' control groups."""
        uids = {pod.key: uid for uid, pod in facts.items()}
        fresh = self._held_at is not None and self._monotonic() - self._held_at <= self._settings.keep_s
        told = {uids[key]: gpus for key, gpus in self._held.items() if key in uids} if fresh else {}
        if not isinstance(problem, Unreachable):
            return told
        static = {pod.said[CONFIG_HASH]: uid for uid, pod in facts.items() if CONFIG_HASH in pod.said}
        for gpu, pids in self._context.pids.items():
            for pid in pids:
                found = pod_of(text_of(self._machine.proc / str(pid) / "cgroup") or "")
                uid = static.get(found.uid, found.uid) if found else ""
                if uid in facts:
                    told[uid] = told.get(uid, frozenset()) | {gpu}
        if self._following is not None:
            self._following.want([facts[uid].key for uid in told])
        return told

    # --- what is told -------------------------------------------------------------------------------------

    def _place(self, problem: Unreachable | str | None, rows: dict[str, list[Row]]) -> None:
        there, gone = self._pods(problem)
        groups = self._groups.group(there, gone)
        found, shared = placements(there)
        self._context.place(self.name, found)
        self._context.set_aliases(self.name, {f"{p.pod.namespace}/{p.pod.name}": p.work.job_id for p in there})
        for gpu in shared:
            self._say(("gpu", gpu.gpu_uuid, "job_id"), "unsupported", _shared_by(shared[gpu]), rows)
        for _, entity, _ in [q for q in self._quality if q[0] == "gpu" and q[1] != self._machine.node_id]:
            if entity not in {gpu.gpu_uuid for gpu in shared}:
                self._say(("gpu", entity, "job_id"), "measured", "one job has it", rows)
        first_step = self._context.first_step
        jobs = (job_row(some, self._settings.labels, first_step(job)) for job, some in groups.items())
        rows["job"] += self._changes.rows(jobs, whole=self._following is None or self._following.resolved)

    def _pods(self, problem: Unreachable | str | None) -> tuple[list[Placed], list[Placed]]:
        """The pods of this node that have to do with GPUs: those there and those that have gone."""
        if self._following is None or not self._following.standing.listed:
            pods = [(only_named(*key), gpus) for key, gpus in self._held.items()]
            return [Placed(pod, Work(pod.namespace, "Pod", pod.name), gpus) for pod, gpus in pods if gpus], []
        facts, ended = self._following.store.take()
        seen = self._following.seen
        gpus = self._gpus(facts, problem)
        there = [
            Placed(pod, seen.works[uid], gpus.get(uid, frozenset()), _queued(seen.queues, seen.works[uid]))
            for uid, pod in facts.items()
            if uid in seen.works and (pod.gpus or pod.claims or uid in gpus or self._groups.last_held(uid))
        ]
        gone = [
            Placed(pod, seen.works[pod.uid], frozenset(), _queued(seen.queues, seen.works[pod.uid]), gone=True)
            for pod in ended
            if pod.uid in seen.works
        ]
        return there, gone

    def _say_kubelet(self, problem: Unreachable | str | None, rows: dict[str, list[Row]]) -> None:
        where = ("gpu", self._machine.node_id, "job_id")
        if isinstance(problem, Unreachable):
            state = "not_permitted" if problem.refused else "error"
            way_out = "; run as root, or grant CAP_DAC_OVERRIDE" if problem.refused else ""
            instead = "by the processes' control groups instead" if self._following else "no job is known"
            self._say(where, state, f"{problem}{way_out}; {instead}", rows)
        elif problem:
            self._say(where, "error", problem, rows)
        else:
            self._say(where, "measured", "the kubelet answers", rows)

    def _say(self, where: tuple[str, str, str], state: str, reason: str, rows: dict[str, list[Row]]) -> None:
        if self._quality.get(where) == (state, reason):
            return
        self._quality[where] = (state, reason)
        table, entity, field = where
        said = {"table_name": table, "entity": entity, "field": field, "state": state}
        rows["quality"].append({**said, "reason": f"kubernetes: {reason}"[:400]})

    def _tell_name(self, node: Node, rows: dict[str, list[Row]]) -> None:
        """What Kubernetes calls this machine, once it is certain that it is this one: the kubelet read the same boot id
        or the same SMBIOS UUID as we did."""
        info = node.status.node_info
        own_uuid = (text_of(self._machine.sys / "class/dmi/id/product_uuid") or "").lower()
        same_board = bool(own_uuid) and info.system_uuid.lower() in (own_uuid, self._machine.node_id)
        if info.boot_id != self._machine.boot_id and not same_board:
            where = ("inventory", self._machine.node_id, "attributes")
            why = f"node {self._node_name} is another machine: neither boot id nor SMBIOS UUID are this one's"
            self._say(where, "implausible", f"{why}; set kubernetes.node_name", rows)
            return
        counts = {d.resource: len(d.ids) for d in self._allocatable or () if d.resource.startswith("nvidia.com/")}
        facts: dict[str, Any] = {
            "name": node.metadata.name, "uid": node.metadata.uid, "provider_id": node.spec.provider_id,
            "machine_id": info.machine_id or None, "system_uuid": info.system_uuid or None,
            "allocatable": counts or None,
        }  # fmt: skip
        text = json.dumps({name: fact for name, fact in facts.items() if fact is not None}, sort_keys=True)
        if text != self._name_told:
            self._name_told = text
            rows["inventory"].append({"kind": "node_name", "entity": "kubernetes", "attributes": text})


def _queued(queues: Mapping[str, Queued], work: Work) -> Queued:
    return queues.get(work.job_id) or Queued()


def _shared_by(jobs: set[str]) -> str:
    return f"shared by {len(jobs)} jobs, none of which can be named for it: {', '.join(sorted(jobs)[:4])}"
