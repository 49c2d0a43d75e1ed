"""What is known of one job before it is judged."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Final

import numpy as np

from graynode.detectors import roles as learning
from graynode.detectors.frames import Bools, Floats, Ints
from graynode.detectors.roles import Roles
from graynode.detectors.straggler import Limits
from graynode.detectors.straggler_excess import Excess, deviations, measure
from graynode.detectors.straggler_places import Places, groups, largest, places
from graynode.detectors.work import Work

_SMALL_PART: Final = 0.1
"""A part of the work under a tenth of busy time is too short to be compared with the others."""


class View:
    """A job's roles and pipelines (given, or learned) and the excess of its whole work, of each part, and of what tells
    data apart. Made once and read only; what is asked for seldom is measured when asked for.

    Without ``split`` the parts of the work are taken as one: an ablation.
    """

    def __init__(self, work: Work, total: Floats, *, split: bool = True) -> None:
        self.work, self._total, self._split = work, total, split
        self.roles: Roles = (
            learning.given(work.role) if work.role is not None else learning.learn(work.rank, work.node, work.traits)
        )

    @cached_property
    def pipeline(self) -> Ints | None:
        """Which ranks work on the same data, −1 for not known."""
        if self.work.pipeline is not None or self.roles.count < 2:
            return self.work.pipeline
        alone = places(self.roles.code, None, self.work.node)
        return learning.learn_pipelines(deviations(self._total, alone)[1], self.roles)

    @cached_property
    def places(self) -> Places:
        """Who is compared with whom."""
        return places(self.roles.code, self.pipeline, self.work.node)

    @cached_property
    def total(self) -> Excess:
        """Of all busy time."""
        return measure(self._total, self.places)

    @cached_property
    def parts(self) -> Mapping[str, Excess]:
        """Of each part of the work; empty where the parts are not known, or there is one."""
        if not self._split or len(self.work.busy) == 1:
            return {}
        whole = np.nansum(self._total)
        large = {name: s for name, s in self.work.busy.items() if np.nansum(s) >= _SMALL_PART * whole}
        return {name: measure(seconds, self.places) for name, seconds in large.items()}

    @cached_property
    def optimizer(self) -> Excess | None:
        """Of work that does not depend on data."""
        if self.work.optimizer is None:
            return None
        return measure(self.work.optimizer, places(self.roles.code, None, self.work.node))

    @cached_property
    def steady(self) -> Excess | None:
        """Of the faster microbatches."""
        return None if self.work.steady is None else measure(self.work.steady, self.places)

    @property
    def separable(self) -> bool:
        """Whether what the data costs can be told from what the rank costs: several roles work on the same data."""
        return self.places.cells is not None

    def stands_out(self, excess: Excess, limits: Limits) -> Bools:
        """Which ranks exceed their peers by more than the least excess, and by more than noise.

        A node all of whose ranks do is one witness by its least sure rank, among as many as there are nodes: its ranks
        may share what moves them, so their chances are not multiplied.
        """
        judged = np.isfinite(excess.own) & np.isfinite(excess.p)
        large = judged & (np.nan_to_num(excess.own) >= np.log1p(limits.least_excess))
        p = np.where(judged, np.where(large, excess.p, 1.0), np.nan)[:, None]
        nodes = groups(np.where(judged, self.work.node, -1))
        together = np.nan_to_num(nodes.over(p, largest)[:, 0], nan=1.0)
        several = np.where(nodes.of >= 0, nodes.size[nodes.of] > 1, False) if len(nodes) else judged
        unlikely = np.nan_to_num(p[:, 0], nan=1.0) <= limits.alpha / max(int(judged.sum()), 1)
        return np.asarray(large & (unlikely | (several & (together <= limits.alpha / max(len(nodes), 1)))))
