"""The common part of `tollgate events export` and `tollgate audit export`: a list into a file, each item once."""
