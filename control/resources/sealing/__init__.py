"""The keys that control seals under, and everything that is sealed in the database."""
