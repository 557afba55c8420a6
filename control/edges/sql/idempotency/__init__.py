"""Answers that are kept for a day, for requests that are repeated with their `Idempotency-Key`."""
