"""Lightning attention."""
