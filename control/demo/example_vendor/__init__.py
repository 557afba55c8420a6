"""The vendor of `tollgate up --example-upstream`: an upstream that needs no key and runs no model."""
