"""`tollgate groups tree`: the tree of groups with its limits and today's usage."""
