"""Reports on the net: what a run did, and what is planned, promised and asserted."""
