"""The node daemon: makes one machine match what the control plane wants, and says what it sees."""
