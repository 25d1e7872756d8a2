"""Formats of messages: the bodies that chat servers and Alertmanager take, made from an event's JSON."""
