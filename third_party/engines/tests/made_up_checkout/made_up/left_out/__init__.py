"""Not brought in."""
