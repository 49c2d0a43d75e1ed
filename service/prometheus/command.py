"""The command behind ``graynode import --format prometheus``: options in, what became of everything out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from graynode.pipeline import fleet_hours
from graynode.pipeline.lake import Lake, LakeError, LakeTooNew, SecondWriter
from graynode.service.config import Config, ConfigError
from graynode.service.prometheus import suspects as prometheus_suspects
from graynode.service.prometheus.client import Access, PrometheusClient
from graynode.service.prometheus.importing import KINDS, Found, Importer, Settings, Tally
from graynode.service.prometheus.plan import HOUR_S, checked_step, parse_ago
from graynode.service.prometheus.progress import progress
from graynode.service.prometheus.refusals import PrometheusError
from graynode.service.times import parsed
from graynode.service.wiring import make_lake

_STOPPED: Final = 130
_REASONS_SHOWN: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a person says on the command line."""

    url: str | None
    since: str = "90d"
    until: str = ""
    step_s: float = 300.0
    match: str = ""
    rate: float = 20.0
    timeout_s: float = 60.0
    user: str = ""
    password_file: Path | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    samples: bool = False


def run_asked(config: Config, paths: Sequence[Path], step: float | None, **asked: Any) -> int:  # noqa: ANN401 (options)
    """The same as the command line gives it."""
    if paths:
        raise ConfigError(f"--format prometheus: {paths[0]}: reads a server (--url), no file")
    return run(config, Options(step_s=300.0 if step is None else step, **asked))


def run(config: Config, options: Options, now: datetime | None = None, lake: Lake | None = None) -> int:
    """Import, say what became of it, name suspects. 0: all of it is in the lake; 1: some is not, or nothing was there.

    ``ConfigError`` for what cannot be, with the way out.
    """
    at = now or datetime.now(UTC)
    settings, start_s, end_s = _settings(config, options, at)
    client = PrometheusClient(_access(options))
    lake = lake or make_lake(config)
    importer = Importer(client, lake, settings)
    try:
        found = importer.discover(start_s, end_s)
        print("\n".join(_what_there_is(found, options, start_s, end_s)))
        if not found:
            return 1
        with progress() as told:
            importer.run(found, start_s, end_s, lambda chunk, share: told(chunk, share, importer.tally.samples))
        fleet_hours.fill(lake)
        _say(client, importer.tally)
        print("\n".join(prometheus_suspects.report(lake, config.cluster, found, start_s, end_s)))
    except KeyboardInterrupt:
        print("\nstopped; what is done is kept: the same command goes on from there")
        return _STOPPED
    except (PrometheusError, LakeError, LakeTooNew, SecondWriter) as error:
        raise ConfigError(f"{error}{_kept(importer.tally)}") from error
    finally:
        client.close()
    return 1 if importer.tally.partial else 0


def _settings(config: Config, options: Options, now: datetime) -> tuple[Settings, int, int]:
    try:
        step_s = checked_step(options.step_s)
    except ValueError as error:
        raise ConfigError(f"--step {options.step_s:g} s: {error}") from error
    start, end = (
        _moment("--since", options.since, now),
        _moment("--until", options.until, now) if options.until else now,
    )
    start_s, end_s = int(start.timestamp()), int(min(end, now).timestamp()) // HOUR_S * HOUR_S
    if end_s - start_s < HOUR_S:
        raise ConfigError(f"--since {options.since}: leaves no whole hour before {min(end, now):%Y-%m-%d %H:%M} UTC")
    match = options.match.strip(" ,{}")
    made = Settings(cluster=config.cluster, step_s=step_s, now=now, match=match, samples=options.samples)
    return made, start_s, end_s


def _access(options: Options) -> Access:
    if not options.url:
        raise ConfigError("--format prometheus: --url is missing: give the server's address, http://prometheus:9090")
    for name, value in (("--rate", options.rate), ("--timeout", options.timeout_s)):
        if not value > 0:
            raise ConfigError(f"{name} {value:g}: a number above 0 is wanted")
    return Access(
        url=options.url, user=options.user, password_file=options.password_file, token_file=options.token_file,
        ca_file=options.ca_file, rate=options.rate, timeout_s=options.timeout_s,
    )  # fmt: skip


def _moment(option: str, text: str, now: datetime) -> datetime:
    """``90d`` before now, or a date or time in ISO 8601, UTC where it names no zone."""
    try:
        return now - parse_ago(text)
    except ValueError as error:
        try:
            return max(parsed(text), now - timedelta(days=3650))
        except ValueError:
            raise ConfigError(f"{option} {text}: {error}, or a date such as 2026-09-01") from error


def _what_there_is(found: Sequence[Found], options: Options, start_s: int, end_s: int) -> Iterator[str]:
    start, end = datetime.fromtimestamp(start_s, UTC), datetime.fromtimestamp(end_s, UTC)
    yield f"{options.url}: {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC, every {options.step_s:g} s"
    for one in found:
        fields = len({(w.table, w.field) for w in one.wanted})
        yield f"  {one.kind.name}: {fields} fields of {', '.join(one.kind.tables)}"
    for kind in KINDS:
        if all(one.kind is not kind for one in found):
            yield f"  {kind.name}: none of its series {_that_match(options)}"
    if not found:
        yield "nothing to import: is this the right server, and the right time (--since, --until)?"


def _that_match(options: Options) -> str:
    return f"with {options.match}" if options.match else "in this time"


def _say(client: PrometheusClient, tally: Tally) -> None:
    retried = f", {client.retries:,} tried again" if client.retries else ""
    print(f"{client.queries:,} queries{retried}, {client.bytes / 1e6:,.0f} MB of answers, {tally.samples:,} samples")
    if tally.skipped:
        print(f"{tally.skipped:>12,} pieces had been imported before, and were not asked for again")
    for table, rows in sorted(tally.rows.items()):
        there = tally.there[table]
        if rows or there:
            print(f"{rows:>12,} rows stored in {table}{f', {there:,} were there already' if there else ''}")
    if tally.duplicates:
        print(
            f"{tally.duplicates:>12,} values given twice for one GPU, field and time (a pair of servers?): one is kept"
        )
    _say_reasons(tally.refused)
    for reason, count in tally.partial.most_common():
        print(f"{count:>12,} pieces NOT imported, their answers being partial: {reason}")
    if tally.partial:
        print("run the same command again for them: what is done is not asked for again")


def _say_reasons(refused: Counter[str]) -> None:
    for reason, count in refused.most_common(_REASONS_SHOWN):
        print(f"{count:>12,} values refused: {reason}")
    if len(refused) > _REASONS_SHOWN:
        print(f"{'':>12} and {len(refused) - _REASONS_SHOWN} reasons more")


def _kept(tally: Tally) -> str:
    return "; what is done is kept: the same command goes on from there" if tally.done or tally.skipped else ""
