"""Identity providers of workspaces, and the documents that they publish."""
