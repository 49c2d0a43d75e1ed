from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graynode.collectors.simulated.noise import ar1, normal, uniform
from graynode.collectors.simulated.steps import Jumps, Steps


def test_noise_is_where_it_stands() -> None:
    """A number depends on seed, stream, entity and tick alone: asked for one by one or all at once, it is the same."""
    entities, ticks = np.arange(5), np.arange(-3, 7)[:, None]
    for draw in (uniform, normal):
        whole = draw(7, 3, entities[None, :], ticks)
        for i in range(whole.shape[0]):
            assert (draw(7, 3, entities, np.full(5, ticks[i, 0])) == whole[i]).all()
        assert (draw(8, 3, entities[None, :], ticks) != whole).all()
        assert (draw(7, 4, entities[None, :], ticks) != whole).all()


def test_noise_has_its_distribution() -> None:
    """Uniforms fill the unit interval evenly; normals have mean 0, spread 1 and no memory."""
    u = uniform(1, 2, np.arange(100)[None, :], np.arange(1000)[:, None])
    counts = np.histogram(u, 20, (0, 1))[0]
    assert abs(counts / 5000 - 1).max() < 0.06
    n = normal(1, 2, np.arange(100)[None, :], np.arange(1000)[:, None])
    assert abs(n.mean()) < 0.02
    assert abs(n.std() - 1) < 0.02
    assert abs(np.mean(n[1:] * n[:-1])) < 0.02
    assert abs(np.mean(n[:, 1:] * n[:, :-1])) < 0.02


def test_autoregression() -> None:
    """It has unit spread and the correlation asked for, and any piece of it is the same whoever asks for it."""
    whole = ar1(1, 5, np.arange(200), 1000, 500, 0.6)
    assert abs(whole.std() - 1) < 0.02
    assert abs(np.mean(whole[1:] * whole[:-1]) - 0.6) < 0.02
    assert np.allclose(ar1(1, 5, np.arange(200), 1200, 10, 0.6), whole[200:210], atol=1e-6)


_pieces = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(-5, 5)), max_size=20)


@given(_pieces, st.integers(0, 2), st.integers(0, 50), st.integers(0, 50))
def test_steps_against_seconds_counted(pieces: list[tuple[int, int, int]], entity: int, a: int, b: int) -> None:
    """Integral and extremes of a piecewise constant function are those of its seconds, one by one."""
    a, b = min(a, b), max(a, b)
    held = {(e, -1): 0 for e in range(3)} | {(e, t): v for e, t, v in pieces}
    entities, starts = (np.array([k[i] for k in held]) for i in range(2))
    steps = Steps(entities, starts.astype(float), {"v": np.array(list(held.values()), float)})

    def at(t: int) -> int:
        return held[max((k for k in held if k[0] == entity and k[1] <= t), key=lambda k: k[1])]

    e, edges = np.array(entity), np.array([a, b], float)
    index = steps.at(e, edges)
    upto = steps.integral("v", index, edges)
    assert np.isclose(upto[1] - upto[0], sum(at(t) for t in range(a, b)))
    if b > a:
        first, last = steps.at(e, edges[:1]), steps.at(e, edges[1:] - 1)
        low, high = steps.extremes("v", first, last)
        assert (low[0], high[0]) == (min(at(t) for t in range(a, b)), max(at(t) for t in range(a, b)))


MOMENTS = st.integers(0, 40 * 64).map(lambda ticks: ticks / 64)
"""Seconds on the axis, to 1/64 s: moments closer than float addition tells apart are one."""


@given(st.lists(st.tuples(st.integers(0, 2), MOMENTS, st.floats(0, 5))), st.integers(0, 2), MOMENTS)
def test_jumps_against_a_sum(moments: list[tuple[int, float, float]], entity: int, t: float) -> None:
    """A counter of moments is the sum of what came up to then."""
    total = Jumps(moments).total(np.array([entity]), np.array([t]))[0]
    assert np.isclose(total, sum(w for e, at, w in moments if e == entity and at <= t), atol=1e-6)
