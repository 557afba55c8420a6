"""`tollgate usage` and `tollgate prices`: reports, monthly statements and the price list."""
