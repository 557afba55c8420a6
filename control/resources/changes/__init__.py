"""The policy file that owns a resource, and the audit trail of changes. No HTTP, no SQL."""
