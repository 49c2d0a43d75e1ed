"""Capacity and cost: where the GPU-hours went, what is free, who waits for what, what could be given back."""

from __future__ import annotations

from graynode.dashboards.grafana import tables
from graynode.dashboards.grafana.board import Board, actions_mark, words
from graynode.dashboards.grafana.infinity import Ask, Picked
from graynode.dashboards.grafana.panels import RANGE, Col, Placed, Series, metric, num, numbers, rows, state
from graynode.dashboards.grafana.sdk import model

BY = ("user", "account", "team", "partition", "work", "model", "category")
_COST = "/api/v1/cost"
_CATEGORIES = (
    ("busy_useful", "working"), ("busy_low", "working, low"), ("allocated_idle", "allocated, idle"), ("held", "held"),
    ("free", "free"), ("stranded", "stranded"), ("reserved", "reserved"), ("out_of_service", "out of service"),
    ("blind", "not measured"),
)  # fmt: skip
_EMPTY = "no GPU was owned in this range, as far as the lake knows: choose a longer one"
_NO_PRICE = "no price: set [cost]"


def board() -> Board:
    """The dashboard."""
    return Board(
        "cost", "graynode: capacity and cost", "Every GPU-hour in one category; what is free, waited for, idle.",
        [
            ("All GPU-hours of this range", [_total(), _categories_total()]),
            ("By whom", [_by(), _categories_by()]),
            ("Capacity now", [_models(), _free()]),
            ("Waiting and idle", [_waiting(), _gap(), _reclaim()]),
            ("Budgets", [_budgets()]),
            ("What utilisation hides", [
                metric(Series("gpu_util_percent", "utilisation", "fleet"), width=8),
                metric(Series("sm_active_ratio", "SMs active", "fleet"), width=8),
                metric(Series("tensor_active_ratio", "tensor pipes active", "fleet"), width=8),
            ]),
        ],
        variables=[words("by", "By", BY, "by whom or what hours and cost are summed")],
        since="now-7d/h", until="now/h", refresh="5m", marks=[actions_mark()],
    )  # fmt: skip


_MEASURES = [
    num("gpu_hours", "GPU-hours", decimals=0),
    num("cost", "Cost", decimals=0, unit="", empty=_NO_PRICE),
    num("energy_kwh", "Energy", decimals=0, empty="not measured"),
    num("util_percent", "Utilisation", decimals=0),
    num("sm_active_ratio", "SMs active", decimals=0, empty="not measured"),
    num("tensor_active_ratio", "Tensor pipes active", decimals=0, empty="not measured"),
    num("power_w", "Power of a GPU", decimals=0),
]


def _priced(placed: Placed) -> Placed:
    """Its money in the currency that the answer names (a suffix in Grafana)."""
    unit = Ask(_COST, [Picked("currency", "currency", "string")], RANGE, root="", ref_id="currency")
    told = {"configRefId": "currency", "mappings": [{"fieldName": "currency", "handlerKey": "unit"}],
            "applyTo": {"id": "byName", "options": "Cost"}}  # fmt: skip
    panel = placed.panel.with_target(unit)  # type: ignore[attr-defined] # a panel's builder, as all here
    panel = panel.with_transformation(model.DataTransformerConfig("configFromData", options=told))
    return Placed(panel, placed.width, placed.height)


def _total() -> Placed:
    about = "All GPU-hours owned in this range, their cost and energy, and utilisation beside what it hides."
    return _priced(numbers("In all", about, _COST, _MEASURES, RANGE, root="total", empty=_EMPTY, width=24))


def _hours() -> list[Col]:
    return [num(f"{category}_gpu_h", text, decimals=0) for category, text in _CATEGORIES]


def _categories_total() -> Placed:
    about = (
        "Every GPU-hour in exactly one category; they sum to all that were owned. Held: memory or a process, no work. "
        "Stranded: free, but of no use to what waits."
    )
    return numbers("Where the GPU-hours went", about, _COST, _hours(), RANGE, root="total", empty=_EMPTY, width=24)


def _by() -> Placed:
    columns = [Col("key", "Whose"), *_MEASURES, num("share", "Share", decimals=1)]
    about = "GPU-hours, cost and energy by what is chosen above. Hours without a job are nobody's."
    return _priced(rows("By $by", about, _COST, columns, {"by": "$by", **RANGE}, empty=_EMPTY))


def _categories_by() -> Placed:
    about = "The same hours by what they went to."
    return rows("Where they went, by $by", about, _COST, [Col("key", "Whose"), *_hours()], {"by": "$by", **RANGE},
                empty=_EMPTY)  # fmt: skip


def _models() -> Placed:
    columns = [
        Col("gpu_model", "Model"),
        Col("partition", "Partition"),
        num("gpus", "GPUs"),
        num("with_a_job", "With a job"),
        num("free", "Free"),
        num("out_of_service", "Out of service"),
        num("suspect", "Suspect"),
        num("not_seen", "Not seen"),
        num("nodes", "Nodes"),
        num("util_percent", "Utilisation", decimals=0),
    ]
    return rows("By model and partition", "GPUs as they are now.", "/api/v1/capacity", columns, width=14, empty=_EMPTY)


def _free() -> Placed:
    columns = [Col("node", "Node", link=tables.TO_NODE), Col("gpu_model", "Model"), num("gpus", "Free GPUs"),
               Col("why", "Why not usable"), Col("node_id", "node_id", hidden=True)]  # fmt: skip
    return rows("Free, by node", "Nodes with free GPUs.", "/api/v1/capacity", columns, {"part": "free"}, width=10,
                empty="no GPU is free")  # fmt: skip


def _waiting() -> Placed:
    columns = [
        Col("job_id", "Job", link=tables.TO_JOB, width=110),
        Col("user", "User", width=110),
        Col("account", "Account", width=110),
        Col("partition", "Partition", width=110),
        Col("work", "Work", width=130),
        Col("shape", "Waits for"),
        num("gpus", "GPUs", width=70),
        num("waited_s", "Waited", width=110),
        state("could_be_served", "Could be served", width=130),
        Col("why", "Why it waits"),
    ]
    about = "Waiting jobs beside the exact shape that they wait for, and whether it is free now."
    return rows("Waiting jobs", about, "/api/v1/capacity", columns, {"part": "waiting"}, empty="no job waits")


def _gap() -> Placed:
    columns = [
        num("median_s", "median", empty="too few"),
        num("p90_s", "90 %", empty="too few"),
        num("gaps", "releases"),
    ]
    about = "From the end of a job on a GPU to the next one there, over the last day."
    return numbers("From release to next use", about, "/api/v1/capacity", columns, {"part": "gap"}, width=8, height=8,
                   empty="no GPU was released in the last day")  # fmt: skip


def _reclaim() -> Placed:
    columns = [
        Col("node", "Node", link=tables.TO_NODE, width=130),
        Col("gpu_uuid", "GPU"),
        Col("category", "Category", width=130),
        num("idle_h", "Idle", width=90),
        Col("user", "User", width=110),
        Col("job_id", "Job", link=tables.TO_JOB, width=110),
        num("mem_used_bytes", "Memory held", width=120),
        num("cost_per_day", "Cost a day", unit="", decimals=0, width=110, empty=_NO_PRICE),
        Col("evidence", "Evidence"),
        Col("node_id", "node_id", hidden=True),
    ]
    about = "GPUs that somebody has and nobody uses, with what that is known from. Ask before you take one."
    return rows("Could be given back", about, "/api/v1/capacity", columns, {"part": "reclaim"}, width=16,
                empty="no GPU is held idle")  # fmt: skip


def _budgets() -> Placed:
    columns = [
        Col("account", "Account"),
        Col("period", "Month"),
        num("used", "Used", unit="", decimals=0),
        num("budget", "Budget", unit="", decimals=0),
        Col("unit", "Unit"),
        num("share", "Share", decimals=0, levels=((None, "green"), (0.8, "orange"), (1.0, "red"))),
    ]
    about = "What accounts have used of their budget of the calendar month; at 80 and 100 % an event is made."
    return rows("Budgets", about, "/api/v1/capacity", columns, {"part": "budgets"}, height=6,
                empty="no account has a budget: set cost.budgets")  # fmt: skip
