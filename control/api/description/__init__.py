"""The words and examples of the management API's OpenAPI document, beside what follows from the models."""
