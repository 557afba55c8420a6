"""The programs that are measured: gateways, peers, upstreams, load generators' subjects."""
