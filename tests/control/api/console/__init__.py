"""Tests of the console: sessions, pages, usage pages and links to them."""
