"""`warmroute doctor`: asks every replica and Redis, and says what is wrong and what fixes it."""
