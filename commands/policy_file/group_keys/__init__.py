"""The keys of groups in a policy file: what is set on them, never their secret."""
