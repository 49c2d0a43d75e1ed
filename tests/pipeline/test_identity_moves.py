"""A GPU's own normal goes with the GPU; what is known of a port stays with its machine."""

from __future__ import annotations

import polars as pl
from window_rounds import Cluster

from graynode.detectors import memory
from graynode.detectors.frames import gpus, links
from graynode.detectors.thermal import Thermal

MOVED = "GPU-001-3"


def moved(frame: pl.DataFrame) -> pl.DataFrame:
    """The same rows after that GPU was put into another machine."""
    there = pl.when(pl.col("gpu_uuid") == MOVED)
    return frame.with_columns(
        there.then(pl.lit("id-node000")).otherwise(pl.col("node_id")).alias("node_id"),
        there.then(pl.lit("node000")).otherwise(pl.col("node")).alias("node"),
    )


def test_a_gpu_is_remembered_wherever_it_is() -> None:
    """Its memory is found by UUID, with the values it had; nothing of it is left with the old machine."""
    c = Cluster(nodes=2)
    before, after = c.round(0, c.start_of(0)).gpu, moved(c.round(1, c.start_of(1)).gpu)
    kept = memory.remember(None, gpus(before, ()).keys, {"base": gpus(before, ("temp_c_mean",)).x["temp_c_mean"]}, 0.0)
    view = gpus(after, ())
    assert view.text("node_id").filter(view.keys == MOVED).to_list() == ["id-node000"]
    held = memory.recall(kept, view.keys, ["base"])["base"]
    was = before.filter(gpu_uuid=MOVED)["temp_c_mean"].to_list()
    assert held[(view.keys == MOVED).to_numpy()].tolist() == was
    assert set(view.keys) == set(gpus(before, ()).keys)


def test_a_port_is_the_machines() -> None:
    """The same name on another machine is another port."""
    frame = Cluster(nodes=2).round(0, Cluster.start_of(0)).link
    elsewhere = frame.with_columns(pl.col("node_id") + "-new")
    assert not set(links(frame, ()).keys) & set(links(elsewhere, ()).keys)


def test_a_detector_forgets_nothing_of_a_gpu_that_moves() -> None:
    """Its state has one row per GPU before and after, and the moved one's goes on."""
    c, state = Cluster(nodes=2), {}
    detector = Thermal()
    for w in range(6):
        round_ = c.round(w, c.start_of(w))
        if w >= 3:
            object.__setattr__(round_, "gpu", moved(round_.gpu))
        state = dict(detector.score(round_, state).state)
        sizes = {name: frame.height for name, frame in state.items() if "key" in frame.columns}
        assert set(sizes.values()) <= {c.size, 0}, (w, sizes)
