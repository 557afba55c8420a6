"""`tollgate demo`: the product's main job through its public API, on real parts, told step by step."""
