"""Callers with tokens of identity providers: what a provider is, its public keys, what a token must be."""
