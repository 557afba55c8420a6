"""Who changes what, as the API says it: which policy file owns a resource, and the audit trail."""
