"""Several workers as one proxy: what they tell each other, by way of the supervisor that started them."""
