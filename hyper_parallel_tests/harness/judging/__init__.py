"""How a case judges: tolerances, parity, determinism, trace, and the flight recorder for reports."""
