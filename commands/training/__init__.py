"""`tollgate training`: training jobs over the management API."""
