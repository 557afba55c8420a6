"""The console's login by OpenID Connect: logins under way, the provider, and people's sessions."""
