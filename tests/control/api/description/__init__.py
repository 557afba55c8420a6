"""Tests of the OpenAPI document against the running product: its examples, its webhooks, the usual linters."""
