"""Values to bytes and back, equal in value and in type."""
