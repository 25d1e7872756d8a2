"""Services of this app; keyword-only arguments, one transaction each."""
