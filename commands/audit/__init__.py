"""`tollgate audit`: who changed what, as a table, or into a file, each change exactly once."""
