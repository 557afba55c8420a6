"""The edges of `tollgate events forward`: its state, its files, its HTTP client."""
