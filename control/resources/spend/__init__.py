"""Spend limits of groups: the rules across a tree, and what is spent."""
