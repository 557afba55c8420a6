"""`tollgate events reconcile`: compares journals, the database and upstream invoices."""
