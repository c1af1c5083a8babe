"""Millions of sentences: bulk encoding that resumes, the stored vectors it makes, many machines through Ray."""
