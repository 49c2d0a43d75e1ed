"""The healthy fleet's noise: what one window of one signal does when nothing is wrong.

x = offset of the GPU at this job + sigma · e, in log units (0.01 is 1 %). e has unit variance, the lag-1 correlation
that is asked for, and a normal or a Student t4 marginal law. The t4 is the law of the windows themselves, not of what
drives them: under AR(1) with t4 innovations a correlation of 0.8 would average the tails away, and clustered extreme
windows are what a sequential test has to stand. So e = g(z) with z a Gaussian AR(1) and g = F_t4⁻¹ ∘ Φ.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import factorial
from typing import Final, Literal

import numpy as np
from numpy.polynomial import hermite_e, polynomial
from numpy.typing import NDArray
from scipy import stats

Tails = Literal["normal", "t4"]
Array = NDArray[np.float32]
_REACH: Final = 4.0
"""Beyond |z| = 4 the t4's windows are held at 12.3 sigma: every sum that is clipped at 6 sigma sees the same."""
_DEGREE: Final = 7


@dataclass(frozen=True, slots=True)
class Noise:
    """One cell of the sweep. ``sigma`` and ``offset`` are standard deviations in log units.

    A benchmark's run-to-run sigma is 0.1 % and a production job's mean clock 0.33 % (Longhorn); 1 % for a window of
    30 s is cautious. Real lag-1 correlations: 0.59 to 0.76 for training steps, 0.11 for LLM steps.
    """

    correlation: float
    tails: Tails
    offset: float
    sigma: float = 0.01

    def __post_init__(self) -> None:
        if not 0.0 <= self.correlation < 1.0:
            raise ValueError(f"correlation is {self.correlation}; it must be within [0, 1)")
        if self.tails not in ("normal", "t4"):
            raise ValueError(f"tails are {self.tails!r}; known are normal and t4")
        if self.offset < 0.0 or self.sigma <= 0.0:
            raise ValueError(f"offset {self.offset} must not be negative and sigma {self.sigma} must be positive")

    @property
    def name(self) -> str:
        """As figures name it: ``ar0.3.t4.offset0.3pct``."""
        return f"ar{self.correlation:g}.{self.tails}.offset{self.offset:.1%}".replace("%", "pct")


class Windows:
    """One signal of ``shape`` healthy GPUs, window after window, in its stationary state from the first on."""

    def __init__(self, noise: Noise, shape: tuple[int, int], rng: np.random.Generator) -> None:
        self._noise, self._rng = noise, rng
        self._size = shape[0] * shape[1]
        self._pairs: Array = np.empty((2, (self._size + 1) // 2), dtype=np.float32)
        self._fresh: Array = np.empty(2 * self._pairs.shape[1], dtype=np.float32)
        self._shape = shape
        latent = latent_correlation(noise.correlation, noise.tails)
        self._keep, self._add = np.float32(latent), np.float32(np.sqrt(1.0 - latent**2))
        self._z: Array = self._normal().copy()
        self._shaped: Array = np.empty(shape, dtype=np.float32)
        self._square: Array = np.empty(shape, dtype=np.float32)
        self._curve = [np.float32(c * noise.sigma) for c in _t4_curve()]

    def offsets(self, groups: int, members: int) -> Array:
        """What ``groups`` new jobs do to each of their GPUs."""
        return self._noise.offset * self._rng.standard_normal((groups, members), dtype=np.float32)

    def next(self) -> Array:
        """The next window's noise, without offset. The array is used again: copy what is to stay."""
        np.multiply(self._z, self._keep, out=self._z)
        fresh = self._normal()
        np.multiply(fresh, self._add, out=fresh)
        np.add(self._z, fresh, out=self._z)
        if self._noise.tails == "normal":
            return np.multiply(self._z, np.float32(self._noise.sigma), out=self._shaped)
        return self._student()

    def _student(self) -> Array:
        z = np.clip(self._z, -_REACH, _REACH, out=self._shaped)
        square = np.multiply(z, z, out=self._square)
        value = np.multiply(square, self._curve[-1])
        for c in self._curve[-2:0:-1]:
            np.add(value, c, out=value)
            np.multiply(value, square, out=value)
        np.add(value, self._curve[0], out=value)
        return np.multiply(value, z, out=self._shaped)

    def _normal(self) -> Array:
        """Box and Muller (1958): twice as fast here as the generator's own normal. Its reach is 5.8 sigma."""
        radius, angle = self._pairs
        self._rng.random(out=self._pairs, dtype=np.float32)
        np.subtract(np.float32(1.0), radius, out=radius)
        np.log(radius, out=radius)
        np.multiply(radius, np.float32(-2.0), out=radius)
        np.sqrt(radius, out=radius)
        np.multiply(angle, np.float32(2.0 * np.pi), out=angle)
        half = radius.size
        np.cos(angle, out=self._fresh[:half])
        np.sin(angle, out=self._fresh[half:])
        np.multiply(self._fresh[:half], radius, out=self._fresh[:half])
        np.multiply(self._fresh[half:], radius, out=self._fresh[half:])
        return self._fresh[: self._size].reshape(self._shape)


def student(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """g(z): the t4 value of unit variance at the same rank as the normal value ``z``, exactly."""
    there = np.sign(z) * stats.t.isf(stats.norm.sf(np.abs(z)), 4) / np.sqrt(2.0)
    return np.asarray(there, dtype=np.float64)


@functools.cache
def latent_correlation(wanted: float, tails: Tails) -> float:
    """The lag-1 correlation of z that gives the windows the one ``wanted``.

    The t4's correlation is Σ cₙ² ρⁿ with c the Hermite coefficients of g (Mehler's formula).
    """
    if tails == "normal" or wanted == 0.0:
        return wanted
    x, weight = hermite_e.hermegauss(120)
    weight = weight / weight.sum()
    value = student(np.clip(x, -_REACH, _REACH))
    odd = np.arange(1, 30, 2)
    hermite = hermite_e.hermevander(x, 30)[:, odd]
    scale = np.array([float(factorial(int(n))) for n in odd])
    power = (weight * value @ hermite) ** 2 / scale
    variance = float((weight * value**2).sum())
    grid = np.linspace(0.0, 0.9999, 10_000)
    reached = (power[:, None] * grid ** odd[:, None]).sum(axis=0) / variance
    return float(np.interp(wanted, reached, grid))


@functools.cache
def _t4_curve() -> tuple[float, ...]:
    """g(z)/z as a polynomial in z², true to 1e-5 of its value up to ``_REACH``."""
    z = np.linspace(1e-3, _REACH, 4000)
    ratio = student(z) / z
    fitted = polynomial.polyfit(z**2, ratio, _DEGREE, w=1.0 / ratio)
    return tuple(float(c) for c in fitted)
