"""What ``zoo.evaluate`` is made of: saved models found, played on common seeds, and reported."""
