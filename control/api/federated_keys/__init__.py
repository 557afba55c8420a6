"""Keys of groups, which call slugs: their operations, and what is set on them."""
