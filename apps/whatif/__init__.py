"""What-ifs: the claims of a pool's last days, replayed as if its GPUs were shared in another way."""
