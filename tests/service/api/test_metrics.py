"""``/metrics``, read by the real promtool."""

from __future__ import annotations


