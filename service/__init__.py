"""Command line, configuration and wiring: the only place that knows all the roles."""
