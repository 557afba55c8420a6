"""The only code of control that touches SQL, Redis, sockets and disk: a room per counterpart.

Must not decide what a change means.
"""
