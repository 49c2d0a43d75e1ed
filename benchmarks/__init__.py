"""Measuring graynode: how well it detects (``detection``) and, run from the sources alone, how fast it is."""
