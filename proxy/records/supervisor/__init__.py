"""The records that the supervisor and its edges exchange."""
