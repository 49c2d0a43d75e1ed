"""Kind of work and team of a job: as the job says, else by the site's rules; what neither says stays unknown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import polars as pl

from graynode.service.config_tables import Cost

KINDS: Final = ("training", "fine_tuning", "quantisation", "batch_inference", "inference", "notebook", "other")
"""``inference`` is in real time. The contract's words (table ``job``, column ``work``)."""
_FIELDS: Final = {"partition": "partition", "account": "account", "user": "user", "job": "job_id"}


class WrongRule(ValueError):
    """A rule of ``[cost.work]`` that cannot be meant."""


def check_rules(rules: Mapping[str, str]) -> None:
    """``WrongRule`` where a rule names no field, or no kind of work."""
    for pattern, work in rules.items():
        field, colon, _ = pattern.partition(":")
        if not colon or field not in _FIELDS:
            raise WrongRule(f'cost.work."{pattern}": write {", ".join(f"{f}:PATTERN" for f in _FIELDS)}')
        if work not in KINDS:
            raise WrongRule(f'cost.work."{pattern}" = "{work}": one of {", ".join(KINDS)}')


def with_rules(rows: pl.DataFrame, cost: Cost) -> pl.DataFrame:
    """Rows with ``work`` filled by the first rule that fits where it is null, and with ``team``, the account's."""
    work = pl.col("work")
    for pattern, kind in cost.work.items():
        field, _, glob = pattern.partition(":")
        fits = pl.col(_FIELDS[field]).str.contains(_regex(glob)).fill_null(value=False)
        work = pl.when(work.is_null() & fits).then(pl.lit(kind)).otherwise(work)
    team = pl.col("account").replace(cost.teams) if cost.teams else pl.col("account")
    return rows.with_columns(work.alias("work"), team.alias("team"))


def _regex(glob: str) -> str:
    """A pattern with ``*`` and ``?`` as an expression of the engine that frames use, which knows no ``\\Z``."""
    parts = [{"*": ".*", "?": "."}.get(c, re.escape(c)) for c in glob]
    return "(?is)^" + "".join(parts) + "$"
