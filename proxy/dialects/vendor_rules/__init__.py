"""Rules of vendors for translated calls in any dialect: order, names, media types and schemas.

Pure. Works on the model in the middle, so that each rule is met once and not in each reader or writer.
"""
