"""Which pod has which GPU (``collector``), and what the cluster says of its nodes (``cluster``)."""
