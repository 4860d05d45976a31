"""A file without cases."""
