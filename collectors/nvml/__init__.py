"""NVIDIA GPUs through NVML: ``collector`` in the agent, ``reader`` its child in the driver, ``wire`` between."""
