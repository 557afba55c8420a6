"""What many workspaces share: places, and turns for long work."""
