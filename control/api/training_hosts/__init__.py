"""The operations on the machines that run jobs: the queue for them, and their GPUs."""
