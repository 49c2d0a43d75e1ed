"""The agent's ``/metrics``: read from its counts when somebody asks, so that a round pays nothing for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import REGISTRY, CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from graynode.collectors.agent import Agent
from graynode.collectors.worker import Worker

_PER_COLLECTOR: Final[tuple[tuple[str, str, Callable[[Worker], float]], ...]] = (
    ("graynode_agent_collections_due", "Collections that the schedule promised.", lambda w: w.tally.expected),
    ("graynode_agent_collections_taken", "Collections that gave rows.", lambda w: w.tally.taken),
    ("graynode_agent_collections_missed", "Skipped: the one before still ran.", lambda w: w.tally.missed),
    ("graynode_agent_collections_backed_off", "Skipped: pause after a failure.", lambda w: w.tally.skipped),
    ("graynode_agent_collection_errors", "Collections that failed.", lambda w: w.tally.errors),
    ("graynode_agent_collection_seconds", "Time spent collecting.", lambda w: w.tally.seconds),
    ("graynode_agent_rows", "Rows collected.", lambda w: w.tally.rows),
)


class AgentMetrics(Collector):
    """Families of one agent. ``spool_bytes`` gives what lies in the spool."""

    def __init__(self, agent: Agent, spool_bytes: Callable[[], int]) -> None:
        self._agent, self._spool_bytes = agent, spool_bytes

    def collect(self) -> Iterable[Metric]:
        """All families."""
        yield _counter("graynode_agent_rounds", "Rounds begun.", self._agent.rounds)
        for name, help_, value in _PER_COLLECTOR:
            family = CounterMetricFamily(name, help_, labels=["collector"])
            for worker in self._agent.workers:
                family.add_metric([worker.name], value(worker))
            yield family
        yield from self._states()
        yield from self._messages()

    def _states(self) -> Iterator[Metric]:
        running = GaugeMetricFamily(
            "graynode_agent_collection_running_seconds",
            "How long the running collection has run.",
            labels=["collector"],
        )
        present = GaugeMetricFamily(
            "graynode_agent_source_present", "0 where this machine has no such source.", labels=["collector"]
        )
        for worker in self._agent.workers:
            running.add_metric([worker.name], worker.busy_s())
            present.add_metric([worker.name], 0 if worker.gone else 1)
        yield from (running, present)
        records = CounterMetricFamily(
            "graynode_agent_records", "Records of a source by what became of them.", labels=["collector", "became"]
        )
        for worker in self._agent.workers:
            for became, count in sorted(getattr(worker.collector, "tally", {}).items()):
                records.add_metric([worker.name, became], count)
        yield records
        misfits = CounterMetricFamily(
            "graynode_agent_misfits", "Values or rows that the contract does not take.", labels=["table", "field"]
        )
        for (table, field), count in sorted(self._agent.misfits.counts.items()):
            misfits.add_metric([table, field], count)
        yield misfits

    def _messages(self) -> Iterator[Metric]:
        sent = self._agent.outbox.sent
        yield _counter("graynode_agent_messages", "Messages that the spool has taken.", sent.messages)
        yield _counter("graynode_agent_message_bytes", "Bytes of these messages.", sent.bytes)
        dropped = CounterMetricFamily(
            "graynode_agent_messages_dropped", "Messages lost: memory full, or refused.", labels=["why"]
        )
        for why, count in (
            ("samples_full", sent.dropped_samples), ("events_full", sent.dropped_events), ("refused", sent.refused)
        ):  # fmt: skip
            dropped.add_metric([why], count)
        yield dropped
        yield _counter(
            "graynode_agent_rows_shed", "Samples dropped because sending hung.", self._agent.batcher.shed_rows
        )
        yield GaugeMetricFamily(
            "graynode_agent_held_bytes", "Bytes in memory that the spool has not taken.", self._agent.outbox.held_bytes
        )
        yield GaugeMetricFamily("graynode_agent_spool_bytes", "Bytes in the spool.", self._spool_bytes())


class _Quiet(WSGIRequestHandler):
    """Does not write a line a request."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401 (as in the base class)
        return


def serve(listen: str, registry: CollectorRegistry = REGISTRY) -> int:
    """Serve the page on ``host:port`` and give the port. ``OSError``, ``ValueError`` or
    ``OverflowError`` where that cannot be.

    prometheus_client's own server wakes twice a second to look whether it should end; on an idle node that was
    an eighth of the agent's budget. This one waits for a request and ends with the process.
    """
    host, _, port = listen.rpartition(":")
    server = make_server(host or "127.0.0.1", int(port), make_wsgi_app(registry), handler_class=_Quiet)
    threading.Thread(target=server.serve_forever, args=(None,), name="metrics", daemon=True).start()
    return server.server_port


def _counter(name: str, help_: str, value: float) -> Metric:
    return CounterMetricFamily(name, help_, value=value)
