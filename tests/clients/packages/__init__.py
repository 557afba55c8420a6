"""Programs that use the client packages as a customer's would, for tests/journeys/clients/test_client_packages.py."""
