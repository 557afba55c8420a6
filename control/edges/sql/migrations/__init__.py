"""Schema migrations: one file per step in `versions/`, run by `control.edges.sql.database.migrate`."""
