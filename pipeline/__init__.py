"""From the bus to the lake, and questions to it. ``schema`` is the contract of all roles."""
