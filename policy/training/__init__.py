"""The messages about training jobs between control and the trainer, and which jobs fit on which hosts. Pure."""
