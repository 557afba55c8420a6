"""The records that stages, rules and edges exchange: messages of both servers, and findings of the supervisor.

The ground floor: whatever exchanges a record imports it from here, so no edge imports what is above it.
"""
