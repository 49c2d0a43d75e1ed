"""The noise has the correlation, the law and the spread that it is asked for."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from graynode.benchmarks.detection.noise import Noise, Windows, student


@pytest.mark.parametrize("tails", ["normal", "t4"])
@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.8])
def test_windows_have_the_moments_asked_for(tails: str, correlation: float) -> None:
    """Spread 1 %, the lag-1 correlation of the windows themselves, and tails of the law: 4 sigma in 416 or 31,574."""
    windows = Windows(Noise(correlation, tails, 0.0), (20, 500), np.random.Generator(np.random.SFC64(5)))
    x = np.array([windows.next().ravel().copy() for _ in range(120)])
    assert x.std() == pytest.approx(0.01, rel=0.02)
    assert np.corrcoef(x[1:].ravel(), x[:-1].ravel())[0, 1] == pytest.approx(correlation, abs=0.01)
    beyond = (x > 0.04).mean()
    expected = stats.norm.sf(4.0) if tails == "normal" else stats.t.sf(4.0 * np.sqrt(2.0), 4)
    assert beyond == pytest.approx(expected, rel=0.25)


def test_student_keeps_the_rank() -> None:
    """The t4 value has the probability of its normal value."""
    z = np.array([-3.0, -1.0, 0.5, 2.5])
    assert stats.t.cdf(student(z) * np.sqrt(2.0), 4) == pytest.approx(stats.norm.cdf(z), rel=1e-9)


def test_the_same_generator_gives_the_same_windows() -> None:
    """Nothing but the generator decides."""
    made = [
        Windows(Noise(0.6, "t4", 0.003), (3, 7), np.random.Generator(np.random.SFC64(9))).next().copy()
        for _ in range(2)
    ]
    assert (made[0] == made[1]).all()


@pytest.mark.parametrize(
    "wrong", [{"correlation": 1.0}, {"tails": "cauchy"}, {"offset": -0.1}, {"sigma": 0.0}], ids=str
)
def test_noise_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    """What is wrong is named."""
    asked = {"correlation": 0.3, "tails": "t4", "offset": 0.003, "sigma": 0.01} | wrong
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Noise(**asked)  # type: ignore[arg-type]
