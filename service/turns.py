"""Every detector's turn in a round; in a large fleet two at a time.

Detectors are pure and know nothing of each other, so their order matters to nobody. What they spend is array arithmetic
and joins, which let go of the interpreter's lock: on two cores a round of 100,000 GPUs takes little over half as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from graynode.detectors.base import Detector, Round, Scored, State

LARGE: Final = 20_000
"""GPU windows in a round from which two at a time are faster than one after the other."""
_AT_ONCE: Final = 2
_HEAVY: Final = ("links", "slow")
"""Those with the most to do begin first, so that nobody waits for them at the end."""


def turns(
    detectors: Mapping[str, Detector], round_: Round, states: Mapping[str, State], *, at_once: int | None = None
) -> dict[str, Scored]:
    """What each detector says of the round, in the order of ``detectors``; ``states`` are not changed.

    ``at_once`` is how many work side by side; by default one, and two in a round of ``LARGE`` or more.
    """
    workers = at_once or (_AT_ONCE if round_.gpu.height >= LARGE else 1)
    if workers == 1:
        return {name: d.score(round_, states.get(name, {})) for name, d in detectors.items()}
    first = sorted(detectors, key=lambda name: name not in _HEAVY)
    with ThreadPoolExecutor(workers, "detector") as pool:
        given = {name: pool.submit(detectors[name].score, round_, states.get(name, {})) for name in first}
    return {name: given[name].result() for name in detectors}
