"""The tenants: PyTorch programs that know nothing of limits. ``loop`` says how they are driven and what they print."""
