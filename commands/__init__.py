"""The command line: one module a command; heavy libraries are imported only by the command that runs."""
