"""`tollgate events export`: billing events into a file, each exactly once over crashes and repetitions."""
