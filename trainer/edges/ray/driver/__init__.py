"""What runs on the Ray cluster: the driver of an attempt, on the head, and its actors on the machines of the nodes."""
