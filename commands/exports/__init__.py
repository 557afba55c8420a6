"""What `tollgate events export` and `tollgate audit export` share: a list of the API into a file, each item once."""
