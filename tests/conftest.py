"""Fixtures of the real components that more than one suite uses."""

from __future__ import annotations

import contextlib
import gc
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# A machine that decides whether a change lands draws the same examples each time; a developer's draws new ones.
# No example has a deadline: a busy machine is not a fault.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("here", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "here")

NOT_RUN: dict[str, str] = {}
"""Suites that this machine cannot run, and what to install; shown at the end in so many words."""


def cannot_run(suite: str, reason: str) -> None:
    """Skip, loudly; where ``CI=true`` promises a machine that has everything, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{suite}: {reason}", pytrace=False)
    NOT_RUN[suite] = reason
    pytest.skip(reason)


# kafka-python leaves the socket of an attempt that found nobody to the garbage collector: never bound, so 0.0.0.0.
_ABANDONED = r"unclosed <socket.*laddr=\('0\.0\.0\.0'"


def pytest_configure(config: pytest.Config) -> None:
    # It reads its schemas in a way that the standard library warns of, in its own name.
    config.addinivalue_line("filterwarnings", "ignore:(open|read)_text is deprecated:DeprecationWarning")
    config.addinivalue_line("filterwarnings", f"ignore:{_ABANDONED}:ResourceWarning")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first, the order otherwise as it was drawn: one that begins last has a worker of many to itself."""
    items.sort(key=lambda item: item.get_closest_marker("early") is None)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Collect what Kafka tests leave while its warning is filtered; at the end of the session none is."""
    if item.get_closest_marker("kafka"):
        gc.collect()


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    """Sockets whose client's thread outlived its test: gone before pytest looks for what was left, its filters over."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_ABANDONED, category=ResourceWarning)
        gc.collect()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of several hands over what it could not run."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["not_run"] = dict(NOT_RUN)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker has ended: what it could not run is not run."""
    NOT_RUN.update(getattr(node, "workeroutput", {}).get("not_run", {}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for suite, reason in NOT_RUN.items():
        terminalreporter.write_sep("!", f"NOT RUN: {suite}", red=True, bold=True)
        terminalreporter.write_line(reason)


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real Slurm of three nodes that all tests share (``slurm_rig.Slurm``); leave it as you found it."""
    import slurm_rig

    try:
        made = slurm_rig.Slurm(tmp_path_factory.mktemp("slurm"))
    except slurm_rig.CannotRun as error:
        cannot_run("everything over a real Slurm", str(error))
        raise AssertionError from error
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """The jars of Apache Kafka, or the suite is not run."""
    import kafka_broker

    try:
        return kafka_broker.jars()
    except kafka_broker.CannotRun as error:
        cannot_run("everything over a real Apache Kafka broker", str(error))
        raise AssertionError from error


@pytest.fixture(scope="session")
def kafka_address(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``host:port`` of a broker that all tests share; make topics of your own on it and never stop it."""
    import kafka_broker

    broker = kafka_broker.Broker(kafka_jars, tmp_path_factory.mktemp("kafka"))
    broker.create()
    yield broker.address()
    broker.stop()


@pytest.fixture
def new_broker(kafka_jars: Path, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes brokers of the test's own, to be killed and to be secured as it likes."""
    import kafka_broker

    made: list[kafka_broker.Broker] = []

    def make(**options: Any) -> kafka_broker.Broker:
        broker = kafka_broker.Broker(kafka_jars, tmp_path / f"broker{len(made)}", **options)
        made.append(broker)
        broker.create()
        return broker

    yield make
    for broker in made:
        broker.stop()


@contextlib.contextmanager
def _metrics_servers(folders: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    import prometheus_server

    made: list[Any] = []

    def make(kind: str, series: Any, *options: str) -> Any:
        try:
            server = getattr(prometheus_server, kind)(folders.mktemp(kind.lower()))
            made.append(server)
            server.serve(series, *options)
        except prometheus_server.CannotRun as error:
            cannot_run("import from a real Prometheus and VictoriaMetrics", str(error))
        return server

    try:
        yield make
    finally:
        for server in made:
            server.stop()


@pytest.fixture
def new_metrics_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Starts a real ``Prometheus`` or ``VictoriaMetrics`` (``prometheus_server``) that holds these series."""
    with _metrics_servers(tmp_path_factory) as make:
        yield make


@pytest.fixture(scope="session")
def shared_metrics_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """The same for servers that many tests ask and none changes: they run until the session's end."""
    with _metrics_servers(tmp_path_factory) as make:
        yield make


@pytest.fixture
def new_alertmanager(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes real Alertmanagers (``alert_rig``) that are stopped at the end; the test starts them."""
    import alert_rig

    made: list[Any] = []

    def make(receiver: Any, **options: Any) -> Any:
        try:
            made.append(alert_rig.Alertmanager(tmp_path / f"alertmanager{len(made)}", receiver, **options))
        except alert_rig.CannotRun as error:
            cannot_run("telling a real Alertmanager", str(error))
        return made[-1]

    yield make
    for server in made:
        server.stop()
