"""What is known of one job before it is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from graynode.detectors.frames import Bools, Ints
from graynode.detectors.roles import Roles
from graynode.detectors.straggler import Limits
from graynode.detectors.straggler_excess import Excess
from graynode.detectors.work import Work


@dataclass(frozen=True, slots=True)
class View:
    """A job's roles and pipelines, and the excess of its whole work, of each part, and of what tells data apart.

    ``parts`` is empty where parts are not known; ``optimizer`` and ``steady`` are ``None`` then.
    """

    work: Work
    roles: Roles
    pipeline: Ints | None
    total: Excess
    parts: Mapping[str, Excess]
    optimizer: Excess | None
    steady: Excess | None

    @property
    def separable(self) -> bool:
        """Whether what the data costs can be told from what the rank costs: several roles work on the same data."""
        return self.pipeline is not None and bool((self.pipeline >= 0).any()) and self.roles.count > 1

    def stands_out(self, excess: Excess, limits: Limits) -> Bools:
        """Which ranks exceed their peers by more than the least excess, and by more than noise."""
        ranks = max(int(np.isfinite(excess.own).sum()), 1)
        with np.errstate(invalid="ignore"):
            return np.asarray(
                (excess.own >= np.log1p(limits.least_excess)) & (excess.p <= limits.alpha / ranks), dtype=np.bool_
            )
