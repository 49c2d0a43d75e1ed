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

from graynode.dashboards.pieces import clean, from_json, head, label, look_yourself, time

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
    lake: str = "",
) -> RenderableType:
    """The whole story, readable at 80 columns. ``then`` is what was stored at the time, where it differs; ``slow`` are
    statements about ranks that held the job up; ``attempts`` is how many placements the job had; ``names`` are those of
    its machines by id; ``lake`` is the one that the line to copy asks, if not the configured one.
    """
    row = plain(told)
    verdict = str(row.get("verdict") or "unknown")
    parts: list[RenderableType] = [
        head(verdict, _STYLES.get(verdict, ""), clean(row.get("message")), _facts(row, attempts)),
        Text(),
        label("What was seen, in order of time"),
    ]
    parts += [Padding(_evidence(row), (0, 0, 1, 2))]
    parts += [label("What to do"), Padding(Text(clean(row.get("action")), style="bold"), (0, 0, 1, 2))]
    for title, lines in (
        ("What weighs on this", row["notes"]),
        ("Machines in doubt", _in_doubt(row, names or {})),
        ("Elsewhere", _elsewhere(row["elsewhere"])),
        ("Its speed", [clean(s.get("message")) for s in slow]),
        ("What could not be asked", row["missing"]),
        ("Said at the time", _said_then(then)),
    ):
        if lines:
            parts += [label(title), Padding(_list(lines), (0, 0, 1, 2))]
    return Group(*parts, _sources(row, lake))


def as_json(told: Row, *, then: Row | None = None, slow: Sequence[Row] = (), attempts: int = 1) -> str:
    """The row with its arrays read, and beside it ``then``, ``slow`` and ``attempts``; indented."""
    row = plain(told) | {"then": plain(then) if then else None, "slow": list(slow), "attempts": attempts}
    return msgspec.json.format(msgspec.json.encode(row), indent=2).decode()


def plain(row: Row) -> dict[str, Any]:
    """A row with arrays as arrays and times as times (UTC); what cannot be read is empty."""
    told = {k: v for k, v in row.items() if k != "date"}
    for name in _JSON:
        value = told.get(name)
        told[name] = from_json(value) if isinstance(value, str) else value
        if told[name] is None:
            told[name] = {} if name == "elsewhere" else []
    for name in _TIMES:
        moment = told.get(name)
        told[name] = moment.astimezone(UTC) if isinstance(moment, datetime) else None
    return told


def _facts(row: Row, attempts: int) -> Iterable[tuple[str, str]]:
    who = ", ".join(
        f"{word} {clean(row[key])}"
        for word, key in (("user", "user"), ("account", "account"), ("partition", "partition"), ("work", "work"))
        if row.get(key)
    )
    alias = f" ({clean(row['job_alias'])})" if row.get("job_alias") else ""
    attempt = f", attempt {int(row.get('attempt') or 0) + 1} of {attempts}" if attempts > 1 else ""
    yield "job", f"{clean(row.get('job_id'))}{alias}{attempt} of cluster {clean(row.get('cluster'))}"
    if who:
        yield "of", who
    state = clean(row.get("job_state")) or "not told"
    machines = f"{row.get('nodes')} machine{'' if row.get('nodes') == 1 else 's'}"
    if row.get("start_ts") or row.get("end_ts"):
        yield "ran", f"{time(row.get('start_ts'))} to {time(row.get('end_ts'), 'now')}, {machines}"
    yield "state", f"{state}{' and standing still' if row.get('phase') == 'hung' else ''}"
    kind, detail = (clean(row.get(name)).replace("_", " ") for name in ("kind", "detail"))
    yield "kind", f"{kind} ({detail})" if detail not in ("", kind) else kind
    yield "confidence", clean(row.get("confidence")) or "none: this is no verdict on code or machine"
    yield "evidence", f"from {time(row.get('window_since'))} to {time(row.get('window_until'))}"
    yield "owner", clean(row.get("owner")).replace("_", " ") or "?"


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
        word = "ended it" if role == "initiating" and row.get("verdict") == "neither" else _ROLES.get(role, role)
        table.add_row(_clock(entry.get("at")), Text(word, style=style), _entry(entry))
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
        clean(x)
        for x in (entry.get("node"), entry.get("link") or entry.get("pci_bus_id") or entry.get("gpu_uuid"))
        if x
    )
    count = int(entry.get("count") or 1)
    times = f" ({count} times)" if count > 1 else ""
    lines = [Text(f"{f'{where}: ' if where else ''}{clean(entry.get('message'))}{times}")]
    remark = [f"by {clean(entry.get('source'))}"]
    ahead = entry.get("clock_ahead_s")
    if isinstance(ahead, int | float) and abs(ahead) >= 1:
        way = "ahead" if ahead > 0 else "behind"
        remark.append(f"its clock is {abs(ahead):.0f} s {way}: it wrote {_clock(entry.get('local_ts'))}")
    if entry.get("may_be_earlier_s"):
        remark.append(f"written up to {float(entry['may_be_earlier_s']):.0f} s earlier")
    lines.append(Text("; ".join(remark), style="dim"))
    raw = clean(entry.get("raw"))
    if raw and raw not in clean(entry.get("message")) and not raw.startswith(clean(entry.get("message"))):
        lines.append(Text(raw[:400], style="dim italic"))
    return Group(*lines)


def _in_doubt(row: Row, names: Mapping[str, str | None]) -> list[str]:
    suspects = [clean(names.get(s) or s) for s in map(str, row["suspects"])]
    if not suspects:
        return []
    more = f" and {len(suspects) - 8} more" if len(suspects) > 8 else ""
    return [f"{', '.join(suspects[:8])}{more}; the most doubtful first. Nothing is done to them because of this."]


def _elsewhere(known: Row) -> list[str]:
    lines = []
    for name, words in _ELSEWHERE.items():
        value = known.get(name)
        if isinstance(value, dict):
            value = ", ".join(f"{n} on {clean(node)}" for node, n in value.items())
        elif isinstance(value, list):
            value = ", ".join(map(clean, value))
        if value:
            lines.append(words.format(clean(value)))
    return lines


def _said_then(then: Row | None) -> list[str]:
    if then is None:
        return []
    sure = f", {clean(then.get('confidence'))}" if then.get("confidence") else ""
    return [f"{time(then.get('ts'))}: {clean(then.get('verdict'))} ({clean(then.get('kind'))}{sure})"]


def _list(lines: Iterable[Any]) -> RenderableType:
    return Group(*(Text(f"- {clean(line)}") for line in lines))


def _sources(row: Row, lake: str) -> RenderableType:
    since, until = (f"'{row[k]:%Y-%m-%d %H:%M}'" if row.get(k) else "now()" for k in ("window_since", "window_until"))
    # for a person to copy, not a statement that is run here
    sql = f"SELECT ts, node, kind, code, message FROM event({since}, {until}) ORDER BY ts"  # noqa: S608
    return look_yourself(sql, lake)


def _clock(text: Any) -> str:  # noqa: ANN401 (JSON)
    try:
        return f"{datetime.fromisoformat(str(text)).astimezone(UTC):%H:%M:%S}"
    except ValueError:
        return "?"
