"""The tenants: PyTorch programs without knowledge of limits. ``loop`` drives them and prints their rows."""
