"""Remote shares: claims that programs on other machines use."""
