"""Stores of an archive's objects: a local folder, S3, GCS and Azure."""
