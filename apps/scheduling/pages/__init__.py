"""Pages: sign-in, overview, node, claim. Server-rendered; a page is a door like any other."""
