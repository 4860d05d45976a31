"""The same trivial case, as each contender wants it written."""
