"""Resources that workspaces share: places, and turns for long work."""
