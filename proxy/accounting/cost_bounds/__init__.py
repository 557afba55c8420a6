"""The most that a call can cost in money, which hard spend limits reserve. Pure."""
