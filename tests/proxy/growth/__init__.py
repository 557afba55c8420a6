"""Growth of the work of readers and writers with their input, counted without a clock."""
