"""One file a command, loaded only when the command is called."""
