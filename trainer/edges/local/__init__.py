"""The backend `local`: nodes are processes of this machine that live on when the trainer or control dies."""

from trainer.edges.local.backend import LocalBackend

__all__ = ["LocalBackend"]
