"""redis-py on one server, on a cluster, and on what sentinels watch: which server a command goes to."""
