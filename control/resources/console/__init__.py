"""The rules of the console: sessions, usage pages and links to them. No HTTP, no SQL."""
