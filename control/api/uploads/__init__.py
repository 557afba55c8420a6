"""Uploads as S3 clients send them: signatures, bodies, answers, and the credentials for them."""
