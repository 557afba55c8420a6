"""Runs training jobs on a backend, for control: starts, watches and stops their nodes, and tells control all of it."""
