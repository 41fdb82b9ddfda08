"""One file a format; each has `matches(path, head)` and `read(path) -> Table`."""
