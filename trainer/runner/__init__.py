"""The process that runs one node of a job: start commands, limits, output, exit status. Standard library only."""
