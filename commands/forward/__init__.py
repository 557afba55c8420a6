"""`tollgate events forward`: delivers each billing event once, to a billing system or into files."""
