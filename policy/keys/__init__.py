"""Restrictions of a valid key: its settings, and the roles of workspace keys and people."""
