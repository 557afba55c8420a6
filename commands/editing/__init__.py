"""What get, create, set and delete of every resource share: bodies, names, deletion, one thing shown."""
