"""What a simulated fleet tells besides samples: events, placements of jobs, its inventory, and the truth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from graynode.collectors.base import Row
from graynode.collectors.simulated import ends, faults
from graynode.collectors.simulated.ends import End
from graynode.collectors.simulated.faults import Fault
from graynode.collectors.simulated.fleet import MODEL, REBOOT_S, VBIOS, Fleet
from graynode.collectors.simulated.jobs import Job
from graynode.collectors.simulated.links import Outages
from graynode.pipeline.schema import stable_id

_FIRST_STEP_S: Final = 45.0


class Told:
    """Events and job rows of a fleet by time. Made once; asked for stretches."""

    def __init__(self, fleet: Fleet, outages: Outages) -> None:
        self._fleet = fleet
        told: list[tuple[float, int, Any]] = []
        for i, job in enumerate(fleet.jobs):
            told += [(job.queued, 0, i), (job.start, 1, i), (job.start + _FIRST_STEP_S, 2, i), (job.end, 3, i)]
        for f in fleet.faults:
            if f.kind == "gpu_lost":
                told += [(f.start, 4, f), (f.end + REBOOT_S, 5, f)]
        for k in range(len(outages.link)):
            told += [
                (float(outages.start[k]), 6, int(outages.link[k])),
                (float(outages.end[k]), 7, int(outages.link[k])),
            ]
        for step in np.nonzero(fleet.boots.columns["silent_s"] > 0)[0]:
            told.append((float(fleet.boots.start[step]), 8, int(step)))
        told.sort(key=lambda entry: (entry[0], entry[1]))
        self._told, self._t = told, np.array([entry[0] for entry in told])

    def between(self, since: float, until: float) -> Iterator[tuple[str, Row]]:
        """Table and row of what happened from ``since`` up to but not including ``until``, in order of time."""
        for i in range(*np.searchsorted(self._t, (since, until))):
            t, what, of = self._told[i]
            yield from self._rows(t, what, of)

    def running(self, t: float) -> Iterator[tuple[str, Row]]:
        """What a reader who begins at ``t`` must know: the placements of jobs that run then."""
        for job in self._fleet.jobs:
            if job.start <= t < job.end:
                yield from (("job", row) for row in self._job(job.start + _FIRST_STEP_S, 2, job))

    def _rows(self, t: float, what: int, of: Any) -> Iterator[tuple[str, Row]]:  # noqa: ANN401 (job, fault or port)
        if what <= 3:
            job = self._fleet.jobs[of]
            yield from (("job", row) for row in self._job(t, what, job))
            if what == 3:
                yield from self._ending(job, self._end(job))
        elif what == 4:
            yield from (("event", row) for row in self._lost(of))
        elif what == 5:
            yield (
                "event",
                self._event(of.node, t, "nvml", "gpu_returned", gpu=of.gpu, message="GPU answers again after a reboot"),
            )
        elif what <= 7:
            yield "event", self._port(t, of, down=what == 6)
        else:
            yield "event", self._reloaded(t, of)

    # --- jobs -------------------------------------------------------------------------------------------

    def _job(self, t: float, what: int, job: Job) -> Iterator[Row]:
        fleet, moment = self._fleet, self._fleet.moment
        if what == 2 and t >= job.end:
            return
        per_node = fleet.spec.per_node
        row: Row = {
            "ts": moment(t), "cluster": fleet.spec.cluster, "job_id": str(job.number),
            "user": f"user{job.number % 23:02d}", "account": f"team{job.number % 5}", "partition": job.kind.partition,
            "work": job.kind.name, "state": ("queued", "allocated", "running", self._end(job).kind.state)[what],
            "queued_ts": moment(job.queued), "requeues": job.requeues, "nodes": len({g // per_node for g in job.gpus}),
            "gpus": len(job.gpus), "ranks": len(job.gpus),
        }  # fmt: skip
        if what == 0:
            head = stable_id("simulated", fleet.spec.cluster, fleet.spec.seed, "scheduler")
            yield {**row, "node": "sim-head", "node_id": head}
            return
        row["allocated_ts"] = moment(job.start)
        if job.start + _FIRST_STEP_S < job.end:
            row["first_step_ts"] = moment(job.start + _FIRST_STEP_S) if what >= 2 else None
        if what == 3:
            how = self._end(job).kind
            row |= {"end_ts": moment(job.end), "exit_code": how.exit_code, "exit_signal": how.exit_signal}
            row["reason"] = how.reason
        for node in sorted({g // per_node for g in job.gpus}):
            mine = [fleet.gpu_uuids[g] for g in job.gpus if g // per_node == node]
            yield {**row, **self._who(node, t), "gpu_uuids": json.dumps(mine)}

    def _end(self, job: Job) -> End:
        return ends.end(self._fleet.spec.seed, job, self._fleet.plan.hardware_ends)

    def _ending(self, job: Job, ended: End) -> Iterator[tuple[str, Row]]:
        """What else is left by an end: Xids and other words of the first machine, and telling lines of outputs."""
        fleet, gpu, kind = self._fleet, job.gpus[ended.rank], ended.kind
        pid = 4000 + job.number % 60000
        for n, (code, text) in enumerate(kind.xids):
            yield "event", self._xid(gpu, job.end - 6.0 + 2.0 * n, code, text, pid=pid, process="python3")
        if "link_down" in kind.events:
            link = gpu // fleet.spec.per_node * (fleet.spec.per_node + 1)
            yield "event", self._port(job.end - 45.0, link, down=True)
            yield "event", self._port(job.end - 1.0, link, down=False)
        for line in ends.lines(fleet.spec.seed, job, ended, fleet.node_names, fleet.spec.per_node):
            who = self._who(job.gpus[line.rank] // fleet.spec.per_node, line.at)
            row = {"ts": fleet.moment(line.at), "cluster": fleet.spec.cluster, **who, "job_id": str(job.number)}
            yield "job_log", {**row, "rank": line.rank, "kind": line.kind, "line": line.text}

    # --- machines ---------------------------------------------------------------------------------------

    def _lost(self, f: Fault) -> Iterator[Row]:
        pci = self._fleet.pci[f.gpu]
        yield self._xid(f.gpu, f.start, 79, "GPU has fallen off the bus.", None, None)
        line = f"NVRM: GPU {pci}: GPU has fallen off the bus."
        yield self._event(f.node, f.start, "kernel_log", "gpu_off_bus", gpu=f.gpu, message=line, raw=line)
        yield self._event(f.node, f.start + 1.0, "nvml", "gpu_lost", gpu=f.gpu, message="NVML: GPU is lost")

    def _xid(self, gpu: int, t: float, code: int, text: str, pid: int | None, process: str | None) -> Row:
        pci = self._fleet.pci[gpu]
        who = f"pid={pid}, name={process}" if pid else "pid='<unknown>', name=<unknown>"
        line = f"NVRM: Xid (PCI:{pci[:-2]}): {code}, {who}, {text}"
        row = self._event(int(self._fleet.node_of_gpu[gpu]), t, "kernel_log", "xid", gpu=gpu, message=line, raw=line)
        return {**row, "code": code, "pid": pid, "process": process}

    def _port(self, t: float, link: int, *, down: bool) -> Row:
        name = self._fleet.link_names[link]
        kind = "link_down" if down else "link_up"
        node = int(self._fleet.node_of_link[link])
        return {**self._event(node, t, "infiniband", kind, message=f"{name}: {kind.replace('_', ' ')}"), "link": name}

    def _reloaded(self, t: float, step: int) -> Row:
        boots = self._fleet.boots
        rebooted = float(boots.columns["silent_s"][step]) == REBOOT_S
        kind = "agent_start" if rebooted else "driver_reload"
        message = "agent started after a reboot" if rebooted else f"driver load {int(boots.columns['load'][step])}"
        return self._event(int(boots.entity[step]), t, "agent" if rebooted else "nvml", kind, message=message)

    def _event(
        self, node: int, t: float, source: str, kind: str, *, gpu: int = -1, message: str, raw: str | None = None
    ) -> Row:
        fleet, who = self._fleet, self._who(node, t)
        row: Row = {
            "ts": fleet.moment(t), "cluster": fleet.spec.cluster, **who, "source": source, "kind": kind,
            "message": message, "raw": raw, "observed_ts": fleet.moment(t), "ts_quality": "exact",
            "event_id": stable_id(
                fleet.spec.cluster, who["node_id"], source, who["boot_id"], kind, f"{t:.3f}", message
            ),
        }  # fmt: skip
        load = fleet.boots.columns["load"][fleet.boots.at(np.array(node), np.array(t))]
        row["driver_load"] = int(load)
        if gpu >= 0:
            row |= {"gpu_uuid": fleet.gpu_uuids[gpu], "pci_bus_id": fleet.pci[gpu]}
        return row

    def _who(self, node: int, t: float) -> Row:
        fleet = self._fleet
        boot = int(fleet.boots.columns["boot"][fleet.boots.at(np.array(node), np.array(t))])
        return {"node": fleet.node_names[node], "node_id": fleet.node_ids[node], "boot_id": fleet.boot_id(node, boot)}


def inventory(fleet: Fleet, t: float) -> list[Row]:
    """One row for each node, GPU and port, as it is at ``t``."""
    rows: list[Row] = []
    for n in range(fleet.spec.nodes):
        boot = int(fleet.boots.columns["boot"][fleet.boots.at(np.array(n), np.array(t))])
        who = {"ts": fleet.moment(t), "cluster": fleet.spec.cluster, "node": fleet.node_names[n],
               "node_id": fleet.node_ids[n], "boot_id": fleet.boot_id(n, boot)}  # fmt: skip
        rack = f"rack{int(fleet.racks[n]):02d}"
        rows.append({**who, "kind": "node", "entity": fleet.node_ids[n], "model": "DGX H100",
                     "driver_version": fleet.drivers[n], "expected": 1,
                     "attributes": json.dumps({"rack": rack})})  # fmt: skip
        for g in range(n * fleet.spec.per_node, (n + 1) * fleet.spec.per_node):
            rows.append({**who, "kind": "gpu", "entity": fleet.gpu_uuids[g], "model": MODEL, "slot": fleet.pci[g],
                         "serial": f"16{fleet.spec.seed % 1000:03d}{g:08d}", "vbios_version": VBIOS,
                         "driver_version": fleet.drivers[n], "expected": fleet.spec.per_node,
                         "attributes": json.dumps({"rack": rack})})  # fmt: skip
        for port in range(fleet.spec.per_node + 1):
            name = fleet.link_names[n * (fleet.spec.per_node + 1) + port]
            card = "ConnectX-7" if port < fleet.spec.per_node else "E810"
            rows.append({**who, "kind": "port", "entity": name, "model": card,
                         "expected": fleet.spec.per_node + 1})  # fmt: skip
    return rows


def truth(fleet: Fleet) -> list[str]:
    """Lines of ``truth.jsonl``: every fault of the fleet, in order of its start."""
    lines = []
    for f in sorted(fleet.faults, key=lambda f: (f.start, f.kind, f.node)):
        gpu = fleet.gpu_uuids[f.gpu] if f.gpu >= 0 else None
        link = fleet.link_names[f.link] if f.link >= 0 else None
        lines.append(faults.truth(f, fleet.node_names[f.node], fleet.node_ids[f.node], gpu, link, fleet.origin))
    return lines
