"""Programs of this machine come in here: the socket, who may start what, and the commands that ask."""
