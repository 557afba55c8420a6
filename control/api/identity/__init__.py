"""Identity providers of workspaces, whose tokens callers may present."""
