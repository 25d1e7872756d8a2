"""Remote shares: programs on other machines use a claim's GPUs through a remoting server under the claim."""
