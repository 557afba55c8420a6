"""The counters in Redis: the Lua scripts, their arguments, and the client that sends them.

Every command has a deadline. Must not decide what a limit means: `policy/limits` does.
"""
