"""The clients that people use, against every provider through one re-pointed slug: `make clients`, not `make test`.

Each client is a process of its own, in an environment of its own, that runs the cases of its script. `compare.py` holds
what it saw through Tollgate against what it saw from a scripted vendor of its own dialect.
"""
