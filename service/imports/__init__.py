"""Files that people have, into the lake: nvidia-smi captures, tables by a map, public data sets."""
