"""What we claim, measured beside the peers in one run: programs pinned to cores, CPU time per request as the unit."""
