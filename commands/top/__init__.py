"""`tollgate top`: who calls what, now, from the proxies' metrics (docs/reference/command-line.md#top)."""
