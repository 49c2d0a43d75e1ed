"""``graynode replay``: the whole path over a recording as if it were live, in a folder and under a cluster of its own.

What would have been told, and when, is printed as the recording reaches it. Nothing is sent to anybody, and nothing of
the site's own lake or bus is touched.
"""

from __future__ import annotations

import gzip
import json
import logging
import threading
import zlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any, Final

from graynode.collectors.base import Machine, NoSource, Row
from graynode.collectors.replay import Replay
from graynode.dashboards.explain import one_line
from graynode.detectors import NAMES
from graynode.pipeline import fleet_hours
from graynode.pipeline.lake import Lake, LakeError, LakeTooNew
from graynode.pipeline.schema import EVENTS, SAMPLES, TABLES
from graynode.service.config import Config, ConfigError
from graynode.service.noticed import Notices, Told, say
from graynode.service.process import quiet, stop_on_signals
from graynode.service.replay_paths import HourPath, LivePath, Revision, Slice, Way, steps_s
from graynode.service.replay_time import RecordedTime, joined, not_taken
from graynode.service.replay_windows import History, WindowPath, history
from graynode.service.times import instant

CLUSTER: Final = "replay"
_STARTED: Final = "replay.json"
_COARSE_S: Final = 30.0
_STOPPED: Final = 130
_HOUR_S: Final = 3600.0
_TELLING: Final = ("event", "job", "node_state")
"""Tables of a recording that say when somebody had to notice (``noticed``)."""


def run(
    config: Config,
    path: Path | None,
    *,
    from_lake: str | None,
    since: datetime | None = None,
    until: datetime | None = None,
    pace: float = 0.0,
    out: Path = Path("graynode-replay"),
    cluster: str = "",
    stop: threading.Event | None = None,
) -> int:
    """Replay to the end or until stopped. 0: all of it; 130: stopped. ``ConfigError`` where it cannot begin."""
    name = cluster or (f"{config.cluster}-{CLUSTER}" if config.cluster != Config().cluster else CLUSTER)
    halt = stop or stop_on_signals()
    try:
        past = history(Lake(from_lake), config.cluster, since, until) if from_lake and path is None else None
        if past is not None:
            _claim(out, Path(str(from_lake)), name)
            with quiet(logging.ERROR):
                return _replay_windows(config, past, name, pace, out, halt)
        time = RecordedTime(
            _recording(path, from_lake, since, until, name, out), name, _called(path, from_lake, since, until)
        )
        first = time.look()
        _claim(out, path or Path(str(from_lake)), name)
        notices = Notices()
        if from_lake is not None:
            _of_people(notices, Lake(from_lake), since, until)
        with quiet(logging.ERROR):
            return _replay(config, time, first, pace, out, halt, notices)
    except (LakeError, LakeTooNew) as error:
        raise ConfigError(str(error)) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text: {error.reason} at byte {error.start}") from error
    except (NoSource, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(f"{path or from_lake}: cannot be read: {error}") from error


def _called(path: Path | None, from_lake: str | None, since: datetime | None, until: datetime | None) -> str:
    span = "".join(f" {word} {at:%Y-%m-%dT%H:%MZ}" for word, at in (("since", since), ("until", until)) if at)
    return f"{path}" if path else f"--from-lake {from_lake}{span}"


def _recording(
    path: Path | None, from_lake: str | None, since: datetime | None, until: datetime | None, cluster: str, out: Path
) -> Replay:
    if (path is None) == (from_lake is None):
        raise ConfigError("name one recording: a file or folder, or --from-lake LAKE")
    machine = Machine(cluster, cluster, cluster, "configured", cluster, out)
    try:
        if from_lake is None and path is not None:
            if not path.exists():
                raise ConfigError(f"{path}: no such file or folder")
            if path.is_dir() and next(path.glob("**/_delta_log"), None):
                raise ConfigError(f"{path}: is a lake, whose folders hold what it has replaced too: use --from-lake")
            return Replay(machine, path, pace=1.0)
        return Replay(machine, rows=_of_lake(Lake(str(from_lake)), since, until), pace=1.0)
    except NoSource as error:
        raise ConfigError(str(error)) from error


def _of_lake(lake: Lake, since: datetime | None, until: datetime | None) -> Iterator[tuple[str, Row]]:
    """Raw rows of a lake, an hour at a time, in order of time."""
    tables = [t for t, told in TABLES.items() if told.topic in (SAMPLES, EVENTS) and t != "quality" and lake.exists(t)]
    days = sorted({_day(uri) for table in tables for uri in lake.files(table, since, until)} - {None}, key=str)
    for day in days:
        for hour in range(24):
            start = datetime.fromisoformat(f"{day}T{hour:02}:00:00+00:00")
            a = max(start, since) if since else start
            b = min(start + timedelta(hours=1), until) if until else start + timedelta(hours=1)
            if a < b:
                yield from _hour(lake, tables, a, b)


def _hour(lake: Lake, tables: list[str], since: datetime, until: datetime) -> Iterator[tuple[str, Row]]:
    rows: list[tuple[str, Row]] = []
    for table in tables:
        frame = lake.read(table, since, until)
        rows += [(table, {k: v for k, v in row.items() if v is not None}) for row in frame.iter_rows(named=True)]
    yield from sorted(rows, key=lambda entry: entry[1]["ts"])


def _day(uri: str) -> str | None:
    at = uri.find("date=")
    return uri[at + 5 : at + 15] if at >= 0 else None


def _claim(out: Path, recording: Path, cluster: str) -> None:
    """A folder holds one replay: another would be judged with the memory of the first."""
    started = out / _STARTED
    if started.exists():
        try:
            told = json.loads(started.read_text("utf-8"))
        except (OSError, ValueError):
            told = {}
        raise ConfigError(
            f"--out {out}: holds a replay of {told.get('recording', '?')} already; a second one would be judged with "
            "the memory of the first: name another folder, or remove this one"
        )
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"--out {out}: is not empty; a replay makes a lake of its own: name a new folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        started.write_text(json.dumps({"recording": str(recording), "cluster": cluster}) + "\n", "utf-8")
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written: {error.strerror or error}") from error


def _of_people(notices: Notices, lake: Lake, since: datetime | None, until: datetime | None) -> None:
    """What a lake's people said, which is not in its raw rows; whatever cluster they said it of."""
    for table in ("repair", "label", "ack"):
        notices.add(table, lake.read(table, since, until).sort("ts").to_dicts())


def _replay_windows(config: Config, past: History, cluster: str, pace: float, out: Path, halt: threading.Event) -> int:
    """Hour by hour over windows that are there already."""
    print(f"from {past.since:%Y-%m-%d %H:%M:%S} UTC, hour windows of cluster {past.cluster!r}, judged in hours, "
          f"cluster {cluster!r}", flush=True)  # fmt: skip
    screen, at = _Screen(), past.since
    way = WindowPath(past, Lake(str(out / "lake")), cluster, NAMES, config.detect.resolve_after_s)
    for end, revisions in way.go():
        at = end
        screen.show(revisions)
        if halt.wait(_HOUR_S / pace if pace else 0.0):
            break
    stopped = halt.is_set()
    print(f"{'stopped' if stopped else 'over'} at {at:%Y-%m-%d %H:%M:%S} UTC: {way.windows:,} windows, "
          f"{screen.opened} incidents told, {screen.open} open at the end")  # fmt: skip
    notices = Notices()
    notices.read(past.lake, past.cluster, past.since, at)
    say(notices, screen.first)
    _say_ask(out)
    return _STOPPED if stopped else 0


def _replay(
    config: Config,
    time: RecordedTime,
    first: list[tuple[datetime, Slice]],
    pace: float,
    out: Path,
    halt: threading.Event,
    notices: Notices,
) -> int:
    cluster, start = time.cluster, first[0][0]
    spacings = list(steps_s(joined(first)))
    step_s = median(spacings) if spacings else 1.0
    way: Way
    if step_s >= _COARSE_S:
        way = HourPath(out, cluster, NAMES, config.detect.resolve_after_s, step_s)
    else:
        way = LivePath(out, cluster, start, NAMES, config.detect.resolve_after_s)
    windows = "hours" if step_s >= _COARSE_S else "30 s windows"
    every = f"a sample every {step_s:g} s, judged in {windows}"
    print(f"from {time.start:%Y-%m-%d %H:%M:%S} UTC, {every}, cluster {cluster!r}", flush=True)
    screen = _Screen()
    try:
        for end, rows in time.slices(first, way.slice_s):
            screen.show(way.take(rows, end))
            for table in _TELLING:
                notices.add(table, rows.get(table, ()))
            if halt.wait(way.slice_s / pace if pace else 0.0):
                break
        else:
            screen.show(way.finish())
    finally:
        way.close()
    fleet_hours.fill(Lake(str(out / "lake")))
    stopped = halt.is_set()
    _say_end(time, screen, stopped, way)
    say(notices, screen.first)
    _say_ask(out)
    return _STOPPED if stopped else 0


class _Screen:
    """A line for each thing that would have been told: opened, worse or better, ended."""

    def __init__(self) -> None:
        self._said: dict[str, tuple[Any, ...]] = {}
        self.opened = 0
        self.first: list[Told] = []

    def show(self, revisions: list[Revision]) -> None:
        for revision in revisions:
            said = tuple(revision[key] for key in ("state", "severity", "title"))
            before = self._said.get(revision["incident_id"])
            if before is not None and before[1:] == said[1:] and revision["state"] != "resolved":
                continue
            if before is None:
                self.opened += 1
                self.first.append(_first(revision))
            self._said[revision["incident_id"]] = said
            print(f"{revision['updated_ts'] or revision['ts']:%Y-%m-%d %H:%M:%S}  {one_line(revision)}", flush=True)

    @property
    def open(self) -> int:
        """Incidents that were not over."""
        return sum(said[0] != "resolved" for said in self._said.values())


def _first(revision: Revision) -> Told:
    node_id = str(revision["node_id"])
    at = revision["opened_ts"] or revision["ts"]
    return Told(at, node_id, str(revision["node"] or node_id), str(revision["severity"]), str(revision["title"]))


def _say_end(time: RecordedTime, screen: _Screen, stopped: bool, way: Way) -> None:
    reached = f"{time.end:%Y-%m-%d %H:%M:%S}" if time.end else "its beginning"
    print(f"{'stopped' if stopped else 'over'} at {reached} UTC: {time.rows:,} rows, {screen.opened} incidents told, "
          f"{screen.open} open at the end{not_taken(time.refused + way.refused)}")  # fmt: skip


def _say_ask(out: Path) -> None:
    question = "select * from incident_now"
    print(f'ask it: graynode sql --lake {out / "lake"} -c "{question}"')


def run_asked(config: Config, path: Path | None, *, since: str, until: str, **asked: Any) -> int:  # noqa: ANN401
    """The same as the command line gives it."""
    begin, end = (instant(option, text) if text else None for option, text in (("--since", since), ("--until", until)))
    return run(config, path, since=begin, until=end, **asked)
