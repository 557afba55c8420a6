"""`tollgate doctor`: what is wrong with an installation, and how to mend it."""
