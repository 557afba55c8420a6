"""Statements of a month's calls: for the command line, and for a customer's usage page."""
