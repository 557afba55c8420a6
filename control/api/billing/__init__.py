"""Usage reports and prices: what calls used, and what that costs."""
