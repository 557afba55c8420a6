"""Who changes what: which policy file owns a resource, and the audit trail. No HTTP, no SQL."""
