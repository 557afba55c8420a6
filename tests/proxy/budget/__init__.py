"""What one governed call costs a worker, counted so that no processor and no load changes it."""
