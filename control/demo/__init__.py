"""`tollgate demo`: runs the product and shows its main features through the public API, step by step.

Must not import the planes' code, because it is a client of the product.
"""
