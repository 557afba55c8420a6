"""The programs that are measured: Tollgate, its peers, the bare Tollgate, the mock upstream."""
