"""The carrying of running programs to another node: dumped by CRIU, sent over TLS, restored there."""
