"""Pages of dcgm-exporter: this node's, or those of many nodes that have no agent."""
