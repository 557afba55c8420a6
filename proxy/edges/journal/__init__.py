"""The journal on local disk, as a worker writes it.

Promises that a record is in the kernel before the method returns. Must not ship or delete: the supervisor does.
"""
