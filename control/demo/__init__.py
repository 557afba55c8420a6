"""`tollgate demo`: the product's main job through its public API, on real parts, step by step.

Must not import the planes' code: it is a caller.
"""
