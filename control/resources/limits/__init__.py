"""The limits of a tree's groups, compared with each other."""
