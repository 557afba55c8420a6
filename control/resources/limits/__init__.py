"""What limits of the groups of a tree mean to each other."""
