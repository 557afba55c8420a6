"""The caches of projects: their directories, and when they are looked at."""
