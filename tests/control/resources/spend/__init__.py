"""Spend limits: what groups have spent, and the job that counts it."""
