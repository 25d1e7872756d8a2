"""How a program starts under a claim: authorization, environment, CDI specs, the exec command."""
