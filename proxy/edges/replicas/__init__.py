"""Network work for replicas of platform models, besides sending calls to them."""
