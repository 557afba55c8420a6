"""What the proxy does on the network for replicas of platform models, besides sending calls to them."""
