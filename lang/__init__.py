"""What users write: programs."""
