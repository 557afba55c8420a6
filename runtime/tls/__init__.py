"""Certificates of our own listeners, in files that change, and the certificates that our parts accept of each other."""
