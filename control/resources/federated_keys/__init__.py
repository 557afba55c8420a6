"""Keys of groups: how they come, what is set on them, changes, rotation."""
