"""The policy file that owns a resource, and the audit trail of changes, as the API shows them."""
