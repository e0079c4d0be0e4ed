"""What the other episodes lead one to expect of a state: values in closed form, and pairs."""
