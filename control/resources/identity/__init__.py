"""Identity providers of workspaces: the rules, and who fetches their keys."""
