"""The programs on the Ray cluster: an attempt's driver, on the head, and its actors on the machines of the nodes."""
