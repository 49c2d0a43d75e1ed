"""What a GPU-hour costs: owned (purchase over its life, energy) or rented (price by commitment, model and time).

Which price holds for a model at a time: ``[[cost.rented]]`` of that time, else ``[cost.owned.MODEL]``, else
``cost.per_gpu_hour``, else the newest row of table ``price`` before it. A model's name is matched by its longest part
that is named, as incidents do (``detectors/waiting.py``); ``*`` is any other.

Owned: ``purchase_per_gpu / (life_years * 8766 h) + other_per_gpu_year / 8766 h`` whether it works or not, and energy:
measured board power and ``host_w_per_gpu`` in kW, times ``tariff_per_kwh`` times ``pue``. A rented GPU's power is in
its price.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any, Final

from graynode.service.config_tables import Cost, Owned, Rented

HOURS_A_YEAR: Final = 8766.0
"""365.25 days."""
_MOST: Final = 10_000.0
"""Money per GPU-hour above which a price is taken for a mistake: the dearest on demand are two orders below."""


class WrongPrice(ValueError):
    """A price that cannot be meant; the text names key, value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Price:
    """Money per GPU-hour: ``fixed`` whatever it does, ``per_kwh`` of energy beside it, from and until when."""

    model: str
    fixed: float
    per_kwh: float = 0.0
    host_w: float = 0.0
    since: datetime | None = None
    until: datetime | None = None
    basis: str = ""

    def holds(self, moment: datetime) -> bool:
        """Whether it is in force then."""
        return (self.since is None or self.since <= moment) and (self.until is None or moment < self.until)


def check(cost: Cost) -> None:
    """``WrongPrice`` where a price, a life, a tariff or a time cannot be meant."""
    for key, value, least, most in _numbers(cost):
        if not math.isfinite(value) or not least <= value <= most:
            raise WrongPrice(f"{key} = {value}: a number from {least:g} to {most:g}")
    money = cost.per_gpu_hour or cost.owned or cost.rented
    if money and not cost.currency and (cost.owned or cost.rented):
        raise WrongPrice('cost.currency = "": prices of owned or rented GPUs need one, such as "EUR"')
    if cost.tariff_per_kwh and not cost.owned:
        raise WrongPrice(
            f"cost.tariff_per_kwh = {cost.tariff_per_kwh}: is used for owned GPUs only; add [cost.owned.MODEL]"
        )
    for i, rented in enumerate(cost.rented):
        if rented.since and rented.until and rented.since >= rented.until:
            raise WrongPrice(f"cost.rented[{i}]: since {rented.since} is not before until {rented.until}")
    _check_overlap(cost.rented)


def _numbers(cost: Cost) -> Iterator[tuple[str, float, float, float]]:
    yield from ((f'cost.per_gpu_hour."{m}"', p, 0.0, _MOST) for m, p in cost.per_gpu_hour.items())
    yield "cost.tariff_per_kwh", cost.tariff_per_kwh, 0.0, 100.0
    yield "cost.pue", cost.pue, 1.0, 5.0
    for model, owned in cost.owned.items():
        key = f'cost.owned."{model}"'
        yield f"{key}.purchase_per_gpu", owned.purchase_per_gpu, 0.0, 10_000_000.0
        yield f"{key}.life_years", owned.life_years, 0.25, 20.0
        yield f"{key}.other_per_gpu_year", owned.other_per_gpu_year, 0.0, 10_000_000.0
        yield f"{key}.host_w_per_gpu", owned.host_w_per_gpu, 0.0, 5000.0
    for i, rented in enumerate(cost.rented):
        yield f"cost.rented[{i}].per_gpu_hour", rented.per_gpu_hour, 0.0, _MOST
    for account, budget in cost.budgets.items():
        yield f'cost.budgets."{account}"', budget, 1e-9, 1e12


def _check_overlap(rented: Sequence[Rented]) -> None:
    for i, one in enumerate(rented):
        for k, other in enumerate(rented[i + 1 :], i + 1):
            apart = (one.until and other.since and one.until <= other.since) or (
                other.until and one.since and other.until <= one.since
            )
            if one.model.lower() == other.model.lower() and not apart and not (one.gpus and other.gpus):
                raise WrongPrice(
                    f"cost.rented[{i}] and [{k}]: two prices of {one.model} at one time; say how many gpus each is for "
                    "(they are averaged by that), or end one with until"
                )


class Prices:
    """Prices in force. ``rows`` of table ``price``: ``ts``, ``gpu_model``, ``per_gpu_hour``, ``currency``."""

    def __init__(self, cost: Cost, rows: Sequence[Mapping[str, Any]] = ()) -> None:
        check(cost)
        self.currency, self.notes = cost.currency, list[str]()
        self._layers = [_rented(cost.rented), _owned(cost), _flat(cost)]
        if not any(self._layers):
            self._layers.append(self._of_table(rows))

    def _of_table(self, rows: Sequence[Mapping[str, Any]]) -> list[Price]:
        named = [r for r in rows if r.get("gpu_model") and _usable(r.get("per_gpu_hour"))]
        if len(named) < len(rows):
            self.notes.append(f"{len(rows) - len(named)} rows of table price name no model or no price: passed over")
        currencies = {r.get("currency") or "" for r in named}
        if len(currencies) > 1:
            self.notes.append(f"table price has {len(currencies)} currencies: no money is shown")
            return []
        self.currency = self.currency or (currencies.pop() if currencies else "")
        newest: dict[str, list[Price]] = {}
        for row in sorted(named, key=lambda r: r["ts"]):
            older = newest.setdefault(str(row["gpu_model"]), [])
            since = row["ts"] if older else None
            older.append(Price(str(row["gpu_model"]), float(row["per_gpu_hour"]), since=since, basis="table price"))
        return [p for some in newest.values() for p in reversed(some)]

    def of(self, model: str | None, moment: datetime) -> Price | None:
        """The price of a model then; ``None`` where none is known."""
        for layer in self._layers:
            there = [p for p in layer if p.holds(moment)]
            named = [p for p in there if p.model != "*" and model is not None and p.model.lower() in model.lower()]
            if named:
                longest = max(len(p.model) for p in named)
                return next(p for p in named if len(p.model) == longest)
            if others := [p for p in there if p.model == "*"]:
                return others[0]
        return None

    def __bool__(self) -> bool:
        return any(self._layers)


def _usable(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= _MOST


def _flat(cost: Cost) -> list[Price]:
    return [Price(m, p, basis="cost.per_gpu_hour") for m, p in cost.per_gpu_hour.items()]


def _owned(cost: Cost) -> list[Price]:
    return [_of_owned(model, owned, cost) for model, owned in cost.owned.items()]


def _of_owned(model: str, owned: Owned, cost: Cost) -> Price:
    fixed = owned.purchase_per_gpu / (owned.life_years * HOURS_A_YEAR) + owned.other_per_gpu_year / HOURS_A_YEAR
    basis = f"owned: {owned.purchase_per_gpu:g} over {owned.life_years:g} years"
    return Price(model, fixed, cost.tariff_per_kwh * cost.pue, owned.host_w_per_gpu, basis=basis)


def _rented(rented: Sequence[Rented]) -> list[Price]:
    """One price for each model and stretch; several commitments of one model at one time averaged by their GPUs."""
    made: list[Price] = []
    for model in sorted({r.model for r in rented}):
        ours = [r for r in rented if r.model == model]
        edges = sorted({e for r in ours for e in (_day(r.since), _day(r.until)) if e is not None})
        for since, until in zip([None, *edges], [*edges, None], strict=True):
            there = [r for r in ours if _covers(r, since, until)]
            if there:
                made.append(_averaged(model, there, since, until))
    return made


def _averaged(model: str, there: Sequence[Rented], since: datetime | None, until: datetime | None) -> Price:
    weights = [r.gpus or 1 for r in there]
    price = sum(r.per_gpu_hour * w for r, w in zip(there, weights, strict=True)) / sum(weights)
    basis = "rented: " + ", ".join(r.commitment or "no commitment named" for r in there)
    return Price(model, price, since=since, until=until, basis=basis)


def _covers(rented: Rented, since: datetime | None, until: datetime | None) -> bool:
    a, b = _day(rented.since), _day(rented.until)
    begun = a is None or (since is not None and a <= since)
    return begun and (b is None or (until is not None and until <= b))


def _day(day: date | None) -> datetime | None:
    return datetime.combine(day, time(), UTC) if day is not None else None
