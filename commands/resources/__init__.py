"""A command group per resource of the management API: list, get, create, set, delete, and what each has besides."""
