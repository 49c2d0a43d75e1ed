"""Why a job ended, for a person: one sentence, the evidence in order of time, what to do next.

Pure: a row of table ``attribution`` (its JSON columns as text or read already) in, rich renderables and texts out.
Texts come from machines and programs and are shown as they are, never as markup, without control characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

Row = Mapping[str, Any]

_STYLES: Final = {
    "infrastructure": "bold red", "application": "bold yellow", "unknown": "bold magenta", "scheduler": "bold cyan",
    "neither": "bold green",
}  # fmt: skip
_ROLES: Final = {"initiating": "BEGAN IT", "cascade": "followed", "teardown": "clean-up", "context": "beside"}
_JSON: Final = ("evidence", "suspects", "elsewhere", "missing", "notes", "finding_ids")
_TIMES: Final = ("ts", "start_ts", "end_ts", "window_since", "window_until", "since")
_SHOWN: Final = 15
_ELSEWHERE: Final = {
    "same_image_completed_elsewhere": "The same image ran to its end on other nodes: jobs {}.",
    "same_image_failed_elsewhere": "The same image failed on other nodes too: jobs {}.",
    "other_jobs_failed_here": "Other jobs failed on these nodes in the week before: {}.",
    "stays_on_one_gpu": "It stays on one GPU: {}.",
    "repeats": "It came before: {}.",
}


def explain_job(
    told: Row,
    *,
    then: Row | None = None,
    slow: Sequence[Row] = (),
    attempts: int = 1,
    names: Mapping[str, str | None] | None = None,
) -> RenderableType:
    """The whole story, readable at 80 columns. ``then`` is what was stored at the time, where it differs; ``slow`` are
    statements about ranks that held the job up; ``attempts`` is how many placements the job had; ``names`` are those of
    its machines by id.
    """
    row = plain(told)
    parts: list[RenderableType] = [_head(row, attempts), Text(), _label("What was seen, in order of time")]
    parts += [Padding(_evidence(row), (0, 0, 1, 2))]
    parts += [_label("What to do"), Padding(Text(_clean(row.get("action")), style="bold"), (0, 0, 1, 2))]
    for title, lines in (
        ("What weighs on this", row["notes"]),
        ("Machines in doubt", _in_doubt(row, names or {})),
        ("Elsewhere", _elsewhere(row["elsewhere"])),
        ("Its speed", [_clean(s.get("message")) for s in slow]),
        ("What could not be asked", row["missing"]),
        ("Said at the time", _said_then(then)),
    ):
        if lines:
            parts += [_label(title), Padding(_list(lines), (0, 0, 1, 2))]
    return Group(*parts, _sources(row))


def as_json(told: Row, *, then: Row | None = None, slow: Sequence[Row] = (), attempts: int = 1) -> str:
    """The row with its arrays read, and beside it ``then``, ``slow`` and ``attempts``; indented."""
    row = plain(told) | {"then": plain(then) if then else None, "slow": list(slow), "attempts": attempts}
    return msgspec.json.format(msgspec.json.encode(row), indent=2).decode()


def plain(row: Row) -> dict[str, Any]:
    """A row with arrays as arrays and times as times (UTC); what cannot be read is empty."""
    told = {k: v for k, v in row.items() if k != "date"}
    for name in _JSON:
        value = told.get(name)
        told[name] = _read(value) if isinstance(value, str) else value
        if told[name] is None:
            told[name] = {} if name == "elsewhere" else []
    for name in _TIMES:
        moment = told.get(name)
        told[name] = moment.astimezone(UTC) if isinstance(moment, datetime) else None
    return told


def _head(row: Row, attempts: int) -> RenderableType:
    verdict = str(row.get("verdict") or "unknown")
    title = Text(f"{verdict.upper()}  ", style=_STYLES.get(verdict, ""))
    title.append(_clean(row.get("message")), style="bold")
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(row, attempts):
        facts.add_row(name, Text(value))
    return Group(title, Text(), facts)


def _facts(row: Row, attempts: int) -> Iterable[tuple[str, str]]:
    who = ", ".join(
        f"{word} {_clean(row[key])}"
        for word, key in (("user", "user"), ("account", "account"), ("partition", "partition"), ("work", "work"))
        if row.get(key)
    )
    alias = f" ({_clean(row['job_alias'])})" if row.get("job_alias") else ""
    attempt = f", attempt {int(row.get('attempt') or 0) + 1} of {attempts}" if attempts > 1 else ""
    yield "job", f"{_clean(row.get('job_id'))}{alias}{attempt} of cluster {_clean(row.get('cluster'))}"
    if who:
        yield "of", who
    state = _clean(row.get("job_state")) or "not told"
    yield "ran", f"{_time(row.get('start_ts'))} to {_time(row.get('end_ts'), 'now')}, {row.get('nodes')} machines"
    yield "state", f"{state}{' and standing still' if row.get('phase') == 'hung' else ''}"
    why = f"{_clean(row.get('kind')).replace('_', ' ')} ({_clean(row.get('detail')).replace('_', ' ')})"
    yield "kind", why
    yield "confidence", _clean(row.get("confidence")) or "none: this is no verdict on code or machine"
    yield "evidence", f"from {_time(row.get('window_since'))} to {_time(row.get('window_until'))}"
    yield "owner", _clean(row.get("owner")).replace("_", " ") or "?"


def _evidence(row: Row) -> RenderableType:
    entries = [e for e in row["evidence"] if isinstance(e, dict)]
    if not entries:
        return Text("nothing that speaks of its end")
    shown = _nearest(entries)
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="cyan")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for entry in shown:
        role = str(entry.get("role") or "")
        style = "bold red" if role == "initiating" else "dim" if role in ("teardown", "context") else ""
        table.add_row(_clock(entry.get("at")), Text(_ROLES.get(role, role), style=style), _entry(entry))
    more = len(entries) - len(shown)
    return Group(table, Text(f"and {more} more; --json shows all")) if more else table


def _nearest(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All that began it, and of the rest the first ones."""
    if len(entries) <= _SHOWN:
        return entries
    first = [i for i, e in enumerate(entries) if e.get("role") == "initiating"][:_SHOWN]
    rest = [i for i, e in enumerate(entries) if i not in first and e.get("role") != "teardown"]
    return [entries[i] for i in sorted([*first, *rest[: _SHOWN - len(first)]])]


def _entry(entry: Row) -> RenderableType:
    where = " ".join(
        _clean(x)
        for x in (entry.get("node"), entry.get("link") or entry.get("pci_bus_id") or entry.get("gpu_uuid"))
        if x
    )
    count = int(entry.get("count") or 1)
    times = f" ({count} times)" if count > 1 else ""
    lines = [Text(f"{f'{where}: ' if where else ''}{_clean(entry.get('message'))}{times}")]
    remark = [f"by {_clean(entry.get('source'))}"]
    ahead = entry.get("clock_ahead_s")
    if isinstance(ahead, int | float) and abs(ahead) >= 1:
        way = "ahead" if ahead > 0 else "behind"
        remark.append(f"its clock is {abs(ahead):.0f} s {way}: it wrote {_clock(entry.get('local_ts'))}")
    if entry.get("may_be_earlier_s"):
        remark.append(f"written up to {float(entry['may_be_earlier_s']):.0f} s earlier")
    lines.append(Text("; ".join(remark), style="dim"))
    raw = _clean(entry.get("raw"))
    if raw and raw not in _clean(entry.get("message")) and not raw.startswith(_clean(entry.get("message"))):
        lines.append(Text(raw[:400], style="dim italic"))
    return Group(*lines)


def _in_doubt(row: Row, names: Mapping[str, str | None]) -> list[str]:
    suspects = [_clean(names.get(s) or s) for s in map(str, row["suspects"])]
    if not suspects:
        return []
    more = f" and {len(suspects) - 8} more" if len(suspects) > 8 else ""
    return [f"{', '.join(suspects[:8])}{more}; the most doubtful first. Nothing is done to them because of this."]


def _elsewhere(known: Row) -> list[str]:
    lines = []
    for name, words in _ELSEWHERE.items():
        value = known.get(name)
        if isinstance(value, dict):
            value = ", ".join(f"{n} on {_clean(node)}" for node, n in value.items())
        elif isinstance(value, list):
            value = ", ".join(map(_clean, value))
        if value:
            lines.append(words.format(_clean(value)))
    return lines


def _said_then(then: Row | None) -> list[str]:
    if then is None:
        return []
    sure = f", {_clean(then.get('confidence'))}" if then.get("confidence") else ""
    return [f"{_time(then.get('ts'))}: {_clean(then.get('verdict'))} ({_clean(then.get('kind'))}{sure})"]


def _list(lines: Iterable[Any]) -> RenderableType:
    return Group(*(Text(f"- {_clean(line)}") for line in lines))


def _sources(row: Row) -> RenderableType:
    since, until = (f"'{row[k]:%Y-%m-%d %H:%M}'" if row.get(k) else "now()" for k in ("window_since", "window_until"))
    # a line for a person to copy, not a statement that is run here
    sql = f'graynode sql -c "SELECT ts, node, kind, code, message FROM event({since}, {until}) ORDER BY ts"'  # noqa: S608
    return Group(_label("Look yourself"), Padding(Text(sql), (0, 0, 0, 2)))


def _label(text: str) -> Text:
    return Text(text, style="bold underline")


def _clean(value: Any) -> str:  # noqa: ANN401 (JSON)
    """A machine's text without what would move a terminal's cursor."""
    return "".join(c if c.isprintable() else " " for c in str(value)) if value is not None else ""


def _time(value: Any, absent: str = "unknown") -> str:  # noqa: ANN401 (JSON)
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if isinstance(value, datetime) else absent


def _clock(text: Any) -> str:  # noqa: ANN401 (JSON)
    try:
        return f"{datetime.fromisoformat(str(text)).astimezone(UTC):%H:%M:%S}"
    except ValueError:
        return "?"


def _read(text: str) -> Any:  # noqa: ANN401 (JSON)
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
