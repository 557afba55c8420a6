"""What each API dialect asks for and answers, and how usage is read from it.

Pure: bytes in, bytes out. Must not know a host, a credential or a clock.
"""
