"""The start of a program under a claim: authorization, environment, CDI specs, the exec command."""
