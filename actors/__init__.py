"""What runs: the actor library, the messages, and one room an actor."""
