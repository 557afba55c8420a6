"""Identity providers of workspaces: their rows."""
