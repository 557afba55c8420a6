"""Looks at what a product needs: Redis, database, disks, upstreams, its own processes. For `tollgate doctor`.

Changes nothing: creates no file that stays, migrates nothing, sends no credential but to its own Redis and database.
"""
