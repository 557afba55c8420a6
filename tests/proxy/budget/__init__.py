"""What one governed call costs a worker, counted: Python calls by part, and user-space instructions."""
