"""`tollgate context`: management APIs by name."""
