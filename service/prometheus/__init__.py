"""What a Prometheus has kept of the fleet, into the lake, and who stands out in it."""
