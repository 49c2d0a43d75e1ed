"""CPU time of a detection round, by detector and fleet size: ``python benchmarks/speed/detection_rounds.py [NODES …]``.

Frames are made beforehand; lake and bus are not in it. 80 ms a round at 512 GPUs is the budget: 720 windows of a
morning are made up for in a minute on one core.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "kit"))

from window_rounds import Cluster

from graynode.detectors import NAMES, make

ROUNDS = 41


def main(sizes: list[int]) -> None:
    """Print a table: milliseconds of CPU a round, all threads counted. The cluster's noise has a fixed seed."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("graynode", "polars", "numpy"))
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, {libraries}")
    print(f"command: benchmarks/speed/detection_rounds.py {' '.join(map(str, sizes))}")
    for nodes in sizes:
        rounds = list(Cluster(nodes=nodes, nodes_per_job=16).rounds(ROUNDS))
        total = 0.0
        print(f"{nodes * 8} GPUs, {nodes} nodes")
        for name in NAMES:
            detector = make(name)
            state = detector.score(rounds[0], {}).state
            began = time.process_time()
            for round_ in rounds[1:]:
                state = detector.score(round_, state).state
            spent = (time.process_time() - began) / (ROUNDS - 1) * 1e3
            total += spent
            print(f"  {detector.name:8} {spent:8.2f} ms")
        print(f"  {'all':8} {total:8.2f} ms", flush=True)


if __name__ == "__main__":
    main([int(a) for a in sys.argv[1:]] or [64])
