"""What `tollgate events forward` keeps and writes: its state, its files, its HTTP client."""
