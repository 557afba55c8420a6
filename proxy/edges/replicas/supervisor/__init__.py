"""Probes the health of replicas, and reports loads, health, wakes and calls to control. Once per machine.

Promises that probes obey the egress rules, and that control's absence delays no call. Must not decide where calls go.
"""
