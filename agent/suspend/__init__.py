"""The suspension of claims: their GPU memory moves to host memory, their programs stand still, and come back."""
