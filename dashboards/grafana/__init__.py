"""Grafana dashboards as code, one module a dashboard (docs/grafana.md). ``boards.BOARDS`` is all of them."""
