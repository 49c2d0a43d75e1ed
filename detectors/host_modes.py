"""How far a host's metrics are from anything that it normally does: distance to its nearest mode of operation.

A host has several normal states (idle, loading, computing, writing), and in each its metrics move together. Modes are
the centres of k-means over standardised history; the distance is Mahalanobis' with the covariance *within* modes,
pooled over them and shrunk towards a ball, so that a break of the usual relation counts and a direction that has never
moved does not explode. k-means alone knows no relations, PCA alone knows one state only. Pure: history in, scores out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

MODES: Final = 20
SHRINK: Final = 0.1
"""Part of the within-mode variance that is taken as alike in all directions."""
_FIT_ROWS: Final = 8192
"""Rows that k-means sees, evenly taken: centres need no more, and it grows with them."""
_LEAST_SPREAD: Final = 1e-3
"""Of a metric's size: what moves less than this has not moved."""


@dataclass(frozen=True, slots=True)
class Modes:
    """Fitted to one host, or to hosts alike: ``centre`` and ``spread`` of each metric, whitener, modes (whitened).

    ``used`` says which metrics moved in the history; of the others nothing can be said.
    """

    centre: Floats
    spread: Floats
    used: npt.NDArray[np.bool_]
    whitener: Floats
    modes: Floats

    def score(self, rows: Floats) -> Floats:
        """log(1 + squared distance) of each row, shape (rows,); NaN for a row without any value.

        A missing value is taken as the metric's mean: it adds nothing.
        """
        known = np.isfinite(rows[:, self.used])
        z = np.where(known, (rows[:, self.used] - self.centre) / self.spread, 0.0) @ self.whitener
        squares = np.square(z).sum(axis=1)[:, None] + np.square(self.modes).sum(axis=1) - 2.0 * z @ self.modes.T
        score = np.log1p(np.maximum(squares.min(axis=1), 0.0))
        return np.where(known.any(axis=1), score, np.nan)


def fit(history: Floats, seed: int, *, modes: int = MODES, related: bool = True) -> Modes:
    """Modes of ``history``, rows × metrics in order of time. The same history and seed give the same modes.

    ``related=False`` leaves the covariance out (plain k-means). ``ValueError``: fewer than two rows with a value.
    """
    from sklearn.cluster import KMeans  # a second to import: only where there is something to fit

    rows = history[np.isfinite(history).any(axis=1)]
    if len(rows) < 2:
        raise ValueError(f"{len(rows)} rows of history have a value; modes need two at least")
    centre, spread, used = _standard(rows)
    z = np.where(np.isfinite(rows[:, used]), (rows[:, used] - centre) / spread, 0.0)
    some = z[:: max(1, len(z) // _FIT_ROWS)]
    found = KMeans(min(modes, len(np.unique(some, axis=0))), n_init=2, random_state=seed).fit(some)
    whitener = np.eye(z.shape[1])
    if related:
        within = z - found.cluster_centers_[found.predict(z)]
        covariance = within.T @ within / len(within)
        level = max(float(np.trace(covariance)) / max(len(covariance), 1), 1e-9)
        covariance = (1.0 - SHRINK) * covariance + SHRINK * level * np.eye(len(covariance))
        whitener = np.linalg.inv(np.linalg.cholesky(covariance)).T
    return Modes(centre, spread, used, whitener, found.cluster_centers_ @ whitener)


def _standard(rows: Floats) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
    known = np.isfinite(rows)
    count = np.maximum(known.sum(axis=0), 1)
    centre = np.where(known, rows, 0.0).sum(axis=0) / count
    spread = np.sqrt(np.where(known, np.square(rows - centre), 0.0).sum(axis=0) / count)
    used = known.any(axis=0) & (spread > _LEAST_SPREAD * np.abs(centre)) & (spread > 0)
    if not used.any():  # nothing ever moved: every metric at its size, so that a first move is seen
        used = known.any(axis=0)
        spread = np.maximum(np.abs(centre), 1.0)
    return centre[used], spread[used], used
