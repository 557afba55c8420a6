"""How the work of readers and writers grows with their input, counted without a clock."""
