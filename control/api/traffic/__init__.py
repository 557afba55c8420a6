"""Figures of traffic, as proxies send them and as the console shows them."""
