"""What a node stands on: units, mounts, disks, host memory, the event log of its management controller."""
