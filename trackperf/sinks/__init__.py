"""The sinks that need no tracker: lines on the terminal, and lines of JSON in a file."""
