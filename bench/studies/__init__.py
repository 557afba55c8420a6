"""One question per file: what a part costs. Each prints a table and can be run alone."""
