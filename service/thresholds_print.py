"""What ``graynode thresholds`` says to a person."""

from __future__ import annotations

import sys
from typing import Final

from rich.console import Console
from rich.table import Table

from graynode.detectors import calibration
from graynode.detectors.calibration import Fitted, Rate
from graynode.detectors.drift import Drift, over_budget
from graynode.service.healthy_days import HealthyDays
from graynode.service.site_thresholds import Accepted, Budget, Standing

_SETS: Final = 6
_UNLIKELY: Final = 0.05


def print_standing(found: Standing, known: list[Accepted], moved: list[Drift]) -> None:
    """What is in force, the budget, what was measured, drift, and the table."""
    console = _console()
    of = found.accepted
    site = found.thresholds.version.startswith("site ")
    version = found.thresholds.version if site else f"shipped {found.thresholds.version}"
    console.print(f"in force: {version}, hash {found.thresholds.digest[:12]}" + _said_of(of))
    speaks = "statistics are in shadow (stored, not told; rules always speak)" if found.shadow else "statistics speak"
    console.print(f"{speaks}: {found.because}")
    console.print(f"budget: {found.budget.text}")
    console.print(f"measured: {rate_text(found.rate, found.budget.per_node_day)}")
    _left_out(console, found.days)
    for d in moved:
        console.print(
            f"drift: {d.key[0]}.{d.key[1]}: {d.above} of {d.node_days} healthy node-days of last week, on {d.nodes} "
            f"nodes, are above what one in a hundred was, {d.expected:.1f} expected (p {d.p_value:.1g}); fit anew: "
            "graynode thresholds fit"
        )
    console.print(_table(found, known))
    if known:
        console.print("sets (graynode thresholds accept ID --why '…'):")
    for s in known[:_SETS]:
        bound = s.first("upper_bound")
        said = f", up to {bound:.2g} a node-day" if bound is not None else ""
        console.print(f"  {s.set_id}  {s.state} {s.at:%Y-%m-%d %H:%M}{said}{f' by {s.who}: {s.why}' if s.who else ''}")


def print_fit(found: Fitted, days: HealthyDays, limit: Budget, set_id: str, not_kept: str) -> None:
    """The set, what judged it, and the node-days that set it."""
    console = _console()
    console.print(
        f"proposed by {found.proposed_node_days:,} healthy node-days from {found.proposed_on[0]} to "
        f"{found.proposed_on[1]}, judged by {found.judged.node_days:,} from {found.judged_on[0]} to "
        f"{found.judged_on[1]} ({found.judged.nodes} nodes); data hash {found.digest[:12]}"
    )
    _left_out(console, days)
    table = Table("signal", "window", "threshold", "usual most", box=None, header_style="bold")
    for (d, s, w), value in sorted(found.values.items()):
        usual = found.usual_most.get((d, s, w))
        table.add_row(f"{d}.{s}", f"{w} s", f"{value:.4g}", "—" if usual is None else f"{usual:.4g}")
    console.print(table)
    console.print(f"budget: {limit.text}")
    console.print(f"judged: {rate_text(found.judged, found.budget)}")
    for d, s, w in found.capped:
        console.print(
            f"{d}.{s} at {w} s: scores are kept up to twice the threshold in force, and this comes near; accept it, "
            "and fit again on days that it decided"
        )
    console.print("nearest to them came (look at these before you accept; label what was sick):")
    for row in found.top.iter_rows(named=True):
        name = days.names.get(row["node_id"]) or row["node_id"]
        console.print(
            f"  {name} on {row['day']}: {row['detector']}.{row['signal']} {row['maximum']:.4g}, {row['part']:.0%}"
            f"   graynode label {name}@{row['day']} true --why '…'"
        )
    if not found.accepted:
        console.print(
            "over the budget: not to be accepted; label what was sick, wait for more days, or raise the budget"
        )
    elif not_kept:
        console.print(f"within the budget, but the candidate is not kept: {not_kept}")
    else:
        console.print(f"within the budget: graynode thresholds accept {set_id} --why '…'")


def rate_text(rate: Rate, limit: float) -> str:
    """A false rate against its budget."""
    if not rate.node_days:
        return "no healthy node-day has ended yet"
    chance = over_budget(rate.told, rate.node_days, limit)
    over = f"over the budget (p {chance:.1g} by chance)"
    verdict = "within the budget" if rate.upper <= limit else over if chance <= _UNLIKELY else "not certified"
    need = calibration.needed(limit)
    more = (
        f"; {need - rate.node_days:,} more node-days could certify it" if rate.told == 0 and rate.upper > limit else ""
    )
    return (
        f"{rate.told} findings on {rate.node_days:,} healthy node-days of {rate.nodes} nodes in {rate.days} days: "
        f"{rate.rate:.2g} a node-day, at most {rate.upper:.2g} (95 %, {rate.by}): {verdict}{more}"
    )


def _left_out(console: Console, days: HealthyDays) -> None:
    if days.left_out:
        told = ", ".join(f"{count} for {reason}" for reason, count in days.left_out.items())
        console.print(f"of {days.whole:,} whole node-days left out: {told}")
    if days.unjudged:
        console.print(
            f"{days.unjudged} of them were told by statistics and judged by nobody: if they were false, the rate is "
            "higher by as many; graynode label INCIDENT true|false --why '…'"
        )


def _said_of(of: Accepted | None) -> str:
    if of is None:
        return "; nothing of this site's is behind it"
    node_days = of.first("node_days")
    data = f", judged by {node_days:,.0f} healthy node-days" if node_days else ""
    return f"; accepted {of.at:%Y-%m-%d} by {of.who}{data}: {of.why}"


def _table(found: Standing, known: list[Accepted]) -> Table:
    from graynode.detectors.thresholds import shipped

    base = shipped()
    candidate = next((s for s in known if s.state == "candidate"), None)
    ours = candidate.values if candidate else {}
    table = Table("signal", "window", "in force", "shipped", "candidate", "unit", "", box=None, header_style="bold")
    for key, row in found.thresholds.rows.items():
        window = f"{row.window_s} s" if row.window_s else "any"
        own = f"{ours[key]:.4g}" if key in ours else ""
        before = f"{base.rows[key].value:.4g}" if key in base.rows else ""
        provisional = "provisional" if row.provisional else ""
        table.add_row(f"{row.detector}.{row.signal}", window, f"{row.value:.4g}", before, own, row.unit, provisional)
    return table


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False)
