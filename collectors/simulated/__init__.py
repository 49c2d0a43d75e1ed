"""A fleet that is not there: its load, its jobs, its faults, and the truth about them."""
