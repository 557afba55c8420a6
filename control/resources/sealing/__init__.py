"""Which keys control seals under, and everything that is sealed in the database."""
