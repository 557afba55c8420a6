"""The machines that run jobs: who waits for room on them, and who uses their GPUs."""
