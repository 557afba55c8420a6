"""The `ray` backend: runs each attempt as a submitted Ray job, whose driver runs a node on each Ray machine it got."""

from trainer.edges.ray.backend import RayBackend

__all__ = ["RayBackend"]
