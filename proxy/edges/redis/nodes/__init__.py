"""The Redis servers that hold the counters: connections, deadlines and breakers, and which server has which key.

Must not know what a command means.
"""
