"""What the latest round tells about work and place, for incidents: asked only when one is told, so it costs rarely."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from graynode.detectors.base import Round
from graynode.detectors.places import Member, Place, places, table


@dataclass(frozen=True, slots=True)
class Work:
    """A node's GPUs and model, and its largest job with the GPUs of that job everywhere. Unknown is ``None``."""

    gpus: int | None = None
    model: str | None = None
    job_id: str | None = None
    job_gpus: int | None = None


NOTHING = Work()


class Context:
    """Of one round; without a round nothing is known."""

    def __init__(self, round_: Round | None = None) -> None:
        self._round = round_

    def work(self, node_id: str, gpu_uuid: str | None = None) -> Work:
        """What runs on a node, or on one GPU of it where that is known; of a job (``job:<id>``) the job itself."""
        kind, _, name = node_id.partition(":")
        if kind == "job" and name in self._job_gpus:
            return Work(job_id=name, job_gpus=self._job_gpus[name])
        found = self._by_node.get(node_id, NOTHING)
        job = self._by_gpu.get(gpu_uuid or "")
        if job is None or job == found.job_id:
            return found
        return Work(found.gpus, found.model, job, self._job_gpus.get(job))

    def nodes(self, kind: str, name: str) -> frozenset[str]:
        """Machines of a place; none where the round does not tell."""
        if self._round is None:
            return frozenset()
        there = (pl.col("kind") == kind) & (pl.col("name") == name)
        for ports in (False, True):
            found = table(self._round, ports=ports).filter(there).get_column("node")
            if len(found):
                return frozenset(found)
        return frozenset()

    def best(self, concerned: Sequence[Member], cause: str) -> Place | None:
        """The place that these nodes or ports share (``places.Places.best``)."""
        if self._round is None:
            return None
        return places(self._round, concerned=frozenset(node for node, _ in concerned)).best(concerned, cause)

    @functools.cached_property
    def _gpus(self) -> pl.DataFrame:
        names = ("node_id", "gpu_uuid", "gpu_model_last", "job_id_last")
        frame = self._round.gpu if self._round is not None else pl.DataFrame()
        if not {"node_id", "gpu_uuid"} <= set(frame.columns):
            return pl.DataFrame(schema=dict.fromkeys(names, pl.String))
        told = [(pl.col(n) if n in frame.columns else pl.lit(None)).cast(pl.String).alias(n) for n in names]
        rows = frame.select(told).drop_nulls(["node_id", "gpu_uuid"]).sort(names, nulls_last=True)
        return rows.unique("gpu_uuid", keep="first", maintain_order=True)

    @functools.cached_property
    def _by_gpu(self) -> Mapping[str, str]:
        return dict(self._gpus.select("gpu_uuid", "job_id_last").drop_nulls().iter_rows())

    @functools.cached_property
    def _job_gpus(self) -> Mapping[str, int]:
        return dict(self._gpus.drop_nulls("job_id_last").group_by("job_id_last").len().iter_rows())

    @functools.cached_property
    def _by_node(self) -> Mapping[str, Work]:
        named = self._gpus.sort("node_id", "gpu_uuid")
        jobs = named.drop_nulls("job_id_last").group_by("node_id", "job_id_last").len()
        most = jobs.sort("len", "job_id_last", descending=[True, False]).unique("node_id", keep="first")
        nodes = named.group_by("node_id").agg(pl.len().alias("gpus"), pl.col("gpu_model_last").drop_nulls().first())
        rows = nodes.join(most.select("node_id", "job_id_last"), on="node_id", how="left")
        return {
            node: Work(gpus, model, job, self._job_gpus.get(job) if job is not None else None)
            for node, gpus, model, job in rows.select("node_id", "gpus", "gpu_model_last", "job_id_last").iter_rows()
        }
