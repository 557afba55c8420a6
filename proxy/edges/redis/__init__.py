"""The counters in Redis: the Lua scripts, their arguments, and the client that sends them.

Promises a deadline for every call. Must not decide what a limit means: `policy/limits` does.
"""
