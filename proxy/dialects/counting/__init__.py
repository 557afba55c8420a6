"""Counts tokens that no provider reported: of a request's text, of what was delivered, and for `count_tokens`.

Pure. Its figures are billed only where no usage was reported.
"""
