"""Prices: owned and rented, by model and time; wrong ones are refused with the reason."""

import math
from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graynode.service.config import ConfigError, parse
from graynode.service.cost_prices import HOURS_A_YEAR, Prices

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
OWNED = {"purchase_per_gpu": 35064, "life_years": 4}
RENTED = {"model": "A100", "per_gpu_hour": 2.0}


def prices(rows: Any = (), **cost: Any) -> Prices:
    return Prices(parse({"cost": {"currency": "EUR", **cost}}, "test").cost, rows)


def test_an_owned_gpu_hour_is_its_purchase_over_its_life_and_its_energy() -> None:
    """35,064 over four years of 8,766 hours is 1.00; energy is told a kWh, times PUE."""
    price = prices(owned={"H100": OWNED | {"host_w_per_gpu": 100}}, tariff_per_kwh=0.2, pue=1.5).of("NVIDIA H100", NOW)
    assert price is not None
    assert price.fixed == pytest.approx(35064 / (4 * HOURS_A_YEAR)) == pytest.approx(1.0)
    assert (price.per_kwh, price.host_w) == (pytest.approx(0.3), 100)


def test_a_rented_price_holds_in_its_time() -> None:
    """Before it nothing is known, then the first contract, then the second, and two at one time by their GPUs."""
    first = RENTED | {"since": date(2026, 1, 1), "until": date(2026, 7, 1)}
    second = RENTED | {"per_gpu_hour": 1.0, "since": date(2026, 7, 1), "gpus": 30}
    third = RENTED | {"per_gpu_hour": 3.0, "since": date(2026, 9, 1), "gpus": 10}
    of = prices(rented=[first, second, third]).of
    assert [p.fixed if (p := of("A100", datetime(y, m, 15, tzinfo=UTC))) else None for y, m in (
        (2025, 12), (2026, 6), (2026, 7), (2026, 9))] == [None, 2.0, 1.0, 1.5]  # fmt: skip


def test_the_longest_name_counts_and_a_star_is_the_rest() -> None:
    """As incidents match models; rented goes before owned, owned before the simple price."""
    of = prices(per_gpu_hour={"H100": 1.0, "H100 80GB": 2.0, "*": 0.5}).of
    assert [p.fixed if (p := of(m, NOW)) else None for m in ("NVIDIA H100 80GB HBM3", "H100 PCIe", "L4", None)] == [
        2.0, 1.0, 0.5, 0.5,
    ]  # fmt: skip
    mixed = prices(per_gpu_hour={"A100": 9.0}, rented=[RENTED]).of("A100", NOW)
    assert mixed is not None
    assert mixed.fixed == 2.0


def test_the_table_counts_where_nothing_is_configured() -> None:
    """Each row from its time on, the first before it too; broken rows are passed over and said."""
    row = {"gpu_model": "H100", "currency": "EUR"}
    rows = [row | {"ts": datetime(2026, m, 1, tzinfo=UTC), "per_gpu_hour": p} for m, p in ((3, 2.0), (9, 1.5))]
    bad = [row | {"ts": NOW, "per_gpu_hour": math.nan}, row | {"ts": NOW, "per_gpu_hour": -1.0}]
    known = prices([*rows, *bad])
    assert [p.fixed if (p := known.of("H100", t)) else None for t in (datetime(2026, 2, 1, tzinfo=UTC), NOW)] == [
        2,
        1.5,
    ]
    assert known.notes
    assert "2 rows" in known.notes[0]
    two = prices([*rows, rows[0] | {"currency": "USD"}])
    assert two.of("H100", NOW) is None
    assert "2 currencies" in two.notes[0]


@pytest.mark.parametrize(
    ("cost", "said"),
    [
        ({"per_gpu_hour": {"H100": -1}}, "per_gpu_hour"),
        ({"per_gpu_hour": {"H100": math.nan}}, "per_gpu_hour"),
        ({"per_gpu_hour": {"H100": math.inf}}, "10000"),
        ({"per_gpu_hour": {"H100": "two"}}, "per_gpu_hour"),
        ({"owned": {"H100": OWNED | {"life_years": 0}}}, "life_years = 0.0: a number from 0.25 to 20"),
        ({"owned": {"H100": OWNED | {"purchase_per_gpu": -5}}}, "purchase_per_gpu"),
        ({"owned": {"H100": {"life_years": 4}}}, "purchase_per_gpu"),
        ({"owned": {"H100": OWNED}, "currency": ""}, "currency"),
        ({"owned": {"H100": OWNED}, "pue": 0.9}, "pue = 0.9: a number from 1 to 5"),
        ({"tariff_per_kwh": 0.2}, "owned GPUs only"),
        ({"rented": [RENTED | {"since": date(2026, 2, 1), "until": date(2026, 1, 1)}]}, "is not before"),
        ({"rented": [RENTED, RENTED]}, "two prices of A100 at one time"),
        ({"budgets": {"a": 0}}, 'cost.budgets."a" = 0.0'),
        ({"work": {"serve*": "inference"}}, "partition:PATTERN"),
        ({"work": {"partition:serve*": "serving"}}, "one of training"),
        ({"prices": {}}, "prices"),
    ],
)
def test_a_wrong_price_is_refused_with_its_name_and_what_is_allowed(cost: dict[str, Any], said: str) -> None:
    """The start stops; nobody finds a wrong sum a quarter later."""
    with pytest.raises(ConfigError, match="cost") as refused:
        parse({"cost": {"currency": "EUR", **cost}}, "graynode.toml")
    assert said in str(refused.value)


@given(
    edges=st.lists(st.dates(date(2026, 1, 1), date(2026, 12, 31)), min_size=1, max_size=6, unique=True),
    day=st.dates(date(2026, 1, 1), date(2026, 12, 31)),
)
def test_of_contracts_that_follow_each_other_the_one_of_the_day_holds(edges: list[date], day: date) -> None:
    """Whatever the order in which they are written."""
    ordered = sorted(edges)
    spans = list(zip(ordered, [*ordered[1:], None], strict=True))
    rented = [
        {"model": "H", "per_gpu_hour": float(i), "since": a, "until": b} for i, (a, b) in enumerate(spans) if a != b
    ]
    rented = [{k: v for k, v in r.items() if v is not None} for r in rented]
    found = prices(rented=rented[::-1]).of("H", datetime(day.year, day.month, day.day, 13, tzinfo=UTC))
    wanted = sum(a <= day for a in ordered) - 1
    assert (found.fixed if found else -1) == wanted
