"""The web console: server-rendered pages on top of every app, one package a noun."""
