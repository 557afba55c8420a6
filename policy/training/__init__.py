"""What control and the trainer say to each other about training jobs, and which jobs fit on which hosts. Pure."""
