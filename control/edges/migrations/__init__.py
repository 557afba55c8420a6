"""The database's history: one file per step in `versions/`, run by `control.edges.database.migrate`."""
