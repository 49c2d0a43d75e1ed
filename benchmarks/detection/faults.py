"""Faults as changes of what is measured. Nothing here knows a detector, so that none can be suited to it."""
