"""What the supervisor and its edges exchange."""
