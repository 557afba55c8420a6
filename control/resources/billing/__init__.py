"""Usage reports and prices: their rules."""
