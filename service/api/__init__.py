"""The HTTP API: what the lake knows, for dashboards and pages (docs/api.md). ``app.create_app`` makes it."""
