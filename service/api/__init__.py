"""The HTTP API: what the lake knows, for dashboards and pages. ``app.create_app`` makes it, ``service/serve.py`` runs it."""
