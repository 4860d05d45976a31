"""What the net itself costs, beside what people use today."""
