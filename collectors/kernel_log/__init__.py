"""The kernel log: records, what they mean for hardware, and where reading stands."""
