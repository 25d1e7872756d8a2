"""Parts that every web page shares."""
