"""The common part of get, create, set and delete of every resource: bodies, names, deletion, one thing shown."""
