"""Colours of charts, light and dark, and the Vega-Lite configuration that carries them.

Every ink on its background has a contrast of at least 4.5 to 1 where it is text and 3 to 1 where it is a mark (WCAG
2.2, 1.4.3 and 1.4.11; tested). Colour never tells alone: series differ by dash and by name, states by words.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, Literal

ThemeName = Literal["light", "dark"]

DASHES: Final = ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3], [4, 4], [12, 4])
"""Dash of each series in order; a chart of more than six series is not read anyway."""
FONT: Final = "DejaVu Sans, Verdana, Arial, sans-serif"


@dataclass(frozen=True, slots=True)
class Theme:
    """One set of colours. ``band`` is filled at ``BAND_OPACITY``; ``series`` are told apart by dash as well."""

    paper: str
    ink: str
    muted: str
    grid: str
    value: str
    baseline: str
    band: str
    alarm: str
    series: tuple[str, ...]


BAND_OPACITY: Final = 0.28
LIGHT: Final = Theme(
    "#ffffff", "#1b1f24", "#57606a", "#d8dee4", "#0b5cac", "#9a3f00", "#56606b", "#b3121d",
    ("#0b5cad", "#9a3f01", "#1a7037", "#7a3fd1", "#7d5500", "#a8186a"),
)  # fmt: skip
DARK: Final = Theme(
    "#0f1318", "#e6edf3", "#a3adb8", "#30373f", "#58a6fe", "#f0883d", "#9aa5b1", "#ff7b71",
    ("#58a6ff", "#f0883e", "#46c05a", "#bd93ff", "#d7a02a", "#f58ac0"),
)  # fmt: skip
THEMES: Final[dict[ThemeName, Theme]] = {"light": LIGHT, "dark": DARK}


def config(theme: Theme) -> dict[str, Any]:
    """The ``config`` of a Vega-Lite specification."""
    words = {"labelColor": theme.muted, "titleColor": theme.ink, "labelFontSize": 11, "titleFontSize": 12}
    lines = {"gridColor": theme.grid, "domainColor": theme.muted, "tickColor": theme.muted}
    return {
        "background": theme.paper,
        "font": FONT,
        "axis": words | lines | {"labelLimit": 260},
        "legend": words | {
            "symbolStrokeWidth": 2, "symbolSize": 400, "orient": "bottom", "labelLimit": 240, "titleLimit": 400
        },
        "title": {"color": theme.ink, "fontSize": 13, "anchor": "start", "fontWeight": "bold"},
        "view": {"stroke": None},
        "range": {"category": list(theme.series)},
        "text": {"color": theme.ink},
    }  # fmt: skip


def dark_rules(scope: str = "svg") -> str:
    """CSS that turns a light picture inside a page dark: a rule for each colour, so no picture is carried twice."""
    pairs: dict[str, str] = {}
    for field in fields(Theme):
        light, dark = getattr(LIGHT, field.name), getattr(DARK, field.name)
        pairs |= dict(zip(light, dark, strict=True)) if isinstance(light, tuple) else {light: dark}
    rules = [
        f'{scope} [{kind}="{light}"] {{ {kind}: {dark} }}'
        for light, dark in pairs.items()
        for kind in ("fill", "stroke")
    ]
    return "\n".join(rules)
