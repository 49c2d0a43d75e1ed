"""A pipeline in a process of its own, to be killed: ``pipeline_child.py (spool|kafka) WHERE LAKE``."""

from __future__ import annotations

import sys

from graynode.pipeline.kafka import KafkaBus, KafkaSettings
from graynode.pipeline.lake import Lake
from graynode.service.config import parse
from graynode.service.pipeline import carry, run
from graynode.service.process import stop_on_signals


def main() -> None:
    """Carry until told to stop; commits come fast, so that kills meet them."""
    kind, where, lake = sys.argv[1:]
    settings = {
        "bus": {"kind": kind, "spool_dir": where},
        "lake": {"path": lake},
        "pipeline": {"commit_s": 0.2, "idle_commit_s": 1.0, "metrics_listen": ""},
    }
    config, stop = parse(settings, "test"), stop_on_signals()
    if kind == "spool":
        sys.exit(run(config, stop))
    # A member that was killed is missed soon, so that the next one need not wait for its partitions.
    carry(config, lambda: KafkaBus(KafkaSettings(where, session_timeout_s=3)), Lake(lake), stop)


if __name__ == "__main__":
    main()
