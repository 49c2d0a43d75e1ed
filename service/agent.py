"""The node agent's main: this machine, its collectors, the spool, and the broker behind it."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from graynode.collectors.agent import Agent, Clock, Settings
from graynode.collectors.base import Machine
from graynode.collectors.context import JobContext
from graynode.collectors.epoch import StateUnusable, lock_state, next_epoch
from graynode.collectors.health import Health
from graynode.collectors.identity import NoIdentity, Roots, resolve
from graynode.pipeline.bus import BusRefused, BusUnavailable
from graynode.service.agent_parts import driver_load, listeners, make_collectors, probes
from graynode.service.agent_spool import BusHealth, Spool, open_spool, printing
from graynode.service.config import Config, ConfigError


def run(config: Config, once: bool, dry_run: bool, stop: threading.Event, *, roots: Roots | None = None) -> int:
    """Collect until ``stop`` (or once). 0; 1 if something could not be sent; 2 if it could not start, said why.

    ``dry_run`` prints what would be sent and leaves no trace. ``roots`` are the machine's files, other ones in tests.
    """
    try:
        with contextlib.ExitStack() as stack:
            machine = stack.enter_context(_machine(config, dry_run, roots))
            spool = printing(stop) if dry_run else open_spool(config, stack)
            agent = _agent(config, machine, spool, 0 if dry_run else next_epoch(machine.state_dir))
            if not (once or dry_run):
                _serve(config, agent, spool)
            sent = agent.once() if once else agent.run(stop)
            return 0 if spool.finish(once) and sent else 1
    except (ConfigError, StateUnusable, NoIdentity, BusUnavailable, BusRefused) as error:
        print(f"graynode: {error}", file=sys.stderr)
    return 2


@contextlib.contextmanager
def _machine(config: Config, dry_run: bool, roots: Roots | None) -> Iterator[Machine]:
    with contextlib.ExitStack() as stack:
        state_dir = config.agent.state_dir
        if dry_run:
            # Sources keep their positions in the state folder; a look must not move those of the agent that runs.
            state_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="graynode-dry-run-")))
        stack.enter_context(lock_state(state_dir))
        said = config.agent
        yield resolve(cluster=config.cluster, state_dir=state_dir, node_id=said.node_id, node=said.node, roots=roots)


def _agent(config: Config, machine: Machine, spool: Spool, epoch: int) -> Agent:
    clock = Clock()
    health = Health(clock.monotonic, machine.proc)
    context = JobContext()
    collectors = make_collectors(config, machine, health, context)
    agent = Agent(
        machine,
        collectors,
        spool.producer,
        epoch,
        settings=Settings(config.agent.batch_s, config.agent.deadline_s),
        driver_load=driver_load(collectors),
        listeners=listeners(collectors),
        context=context,
        clock=clock,
        health=health,
    )
    health.probes += [*probes(collectors), BusHealth(spool, agent)]
    return agent


def _serve(config: Config, agent: Agent, spool: Spool) -> None:
    listen = config.agent.metrics_listen
    if not listen:
        return
    from prometheus_client import REGISTRY

    from graynode.service.agent_metrics import AgentMetrics, serve

    REGISTRY.register(AgentMetrics(agent, spool.size_bytes))
    try:
        serve(listen)
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"agent.metrics_listen = {listen!r}: cannot listen there: {error}; choose another host:port, or '' for none"
        ) from error
