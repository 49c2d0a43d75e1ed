"""Which job has which GPU (``collector``), and what Slurm says of its nodes (``cluster``)."""
