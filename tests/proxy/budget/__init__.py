"""The cost of one governed call to a worker, counted so that no processor and no load changes it."""
